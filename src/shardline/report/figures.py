"""Template filters for the charts of `report/studies.html.j2`."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardline.records.measured import Goodput
from shardline.records.reported_runs import ReportedRun
from shardline.report.charts.axes import Spec
from shardline.report.charts.scatter import Point, scatter
from shardline.report.charts.varied import Trial, effects, parallel_coordinates
from shardline.report.charts.workflow import lay_out
from shardline.report.leaderboard import Group

MAX_BARS = 100
MAX_LISTED = 8
# In order of time. Only "compute" trains the model.
GOODPUT_PARTS = {
    "queue": "queue",
    "environment": "environment",
    "rendezvous": "rendezvous",
    "data_wait": "data wait",
    "compute": "compute",
    "validation": "validation",
    "checkpoint": "checkpoint",
    "lost": "lost to restarts",
    "other": "other",
}


def trials_of(group: Group) -> list[Trial]:
    """Return the measured runs of a group with their varied settings."""
    measured = [entry for entry in group.entries if math.isfinite(entry.run.value)]
    keys = sorted({key for entry in measured for key in entry.run.varied})
    keys = [key for key in keys if key not in ("dataset", "dataset.name")]
    return [
        Trial(
            series=entry.series,
            value=entry.run.value,
            settings={key: entry.run.setting(key) for key in keys},
        )
        for entry in measured
    ]


def effects_chart(group: Group) -> Spec | None:
    """Return the chart of effects of settings; None if no setting varies."""
    return effects(trials_of(group), group.metric)


def parallel_chart(group: Group) -> Spec | None:
    """Return the parallel coordinates; None if fewer than two settings vary."""
    return parallel_coordinates(trials_of(group), group.metric, group.mode)


def scatter_chart(group: Group) -> Spec | None:
    """Return the scatter plot of any two numbers; None if fewer than two numbers differ."""
    points = [Point(series=entry.series, figures=_numbers(entry.run)) for entry in group.entries]
    varied = sorted({key for entry in group.entries for key in entry.run.varied})
    return scatter(points, varied, f"held-out {group.metric}")


def _numbers(run: ReportedRun) -> dict[str, object]:
    """Return possible numbers of a run: held-out metrics, training measurements and settings."""
    ranks = run.resources.ranks if run.resources else []
    return {
        f"held-out {run.metric}": run.value,
        **{f"held-out {key}": value for key, value in run.held_out.items()},
        "validation": run.best_validation.value if run.best_validation else None,
        "training time (s)": run.training.duration_s,
        "steps": run.training.steps,
        "samples per second": run.throughput.samples_per_s if run.throughput else None,
        "goodput": run.goodput.share if run.goodput else None,
        "peak memory of a rank (bytes)": _most(rank.peak_rss_bytes for rank in ranks),
        "peak memory of a GPU (bytes)": _most(rank.peak_gpu_bytes for rank in ranks),
        "CPU time of all ranks (s)": sum(rank.cpu_s for rank in ranks) if ranks else None,
        **{key: value for key, value in run.settings.items() if key not in run.varied_values},
        **{key: value for key, value in run.varied_values.items() if key != "dataset"},
    }


def _most(values: Iterable[int | None]) -> int | None:
    return max(filter(None, values), default=None)


@dataclass(frozen=True, kw_only=True)
class GoodputPart:
    """Part of the time of a training: seconds (None if unknown), and percent of the elapsed time."""

    name: str
    label: str
    seconds: float | None
    percent: float


@dataclass(frozen=True, kw_only=True)
class GoodputBar:
    """Time of a training by activity; `share` of computing from 0 to 1, None if unknown."""

    title: str
    elapsed_s: float
    share: float | None
    parts: Sequence[GoodputPart]


def goodput_bars(runs: Sequence[ReportedRun]) -> list[GoodputBar]:
    """Return a bar per run that measured its times, at most 100."""
    known = [(run, run.goodput) for run in runs if run.goodput and run.goodput.elapsed_s]
    names = Counter(run.name for run, _ in known)
    return [
        GoodputBar(
            title=run.name if names[run.name] == 1 else run.id,
            elapsed_s=goodput.elapsed_s,
            share=goodput.share,
            parts=_parts(goodput),
        )
        for run, goodput in known[:MAX_BARS]
    ]


def _parts(goodput: Goodput) -> list[GoodputPart]:
    return [
        GoodputPart(
            name=name,
            label=label,
            seconds=goodput.parts.get(name),
            percent=round(100 * (goodput.parts.get(name) or 0) / goodput.elapsed_s, 2),
        )
        for name, label in GOODPUT_PARTS.items()
    ]


def shares(values: Sequence[float]) -> str:
    """Format shares of ranks in percent; for more than eight ranks, the lowest and highest."""
    written = [f"{100 * value:.1f}" for value in values]
    if len(values) > MAX_LISTED:
        written = [f"{100 * min(values):.1f} to {100 * max(values):.1f}"]
    return f"{', '.join(written)} %" if written else "–"


FILTERS = {
    "effects_chart": effects_chart,
    "goodput_bars": goodput_bars,
    "lay_out": lay_out,
    "parallel_chart": parallel_chart,
    "shares": shares,
    "scatter_chart": scatter_chart,
}
