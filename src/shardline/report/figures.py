"""What the macros of `report/studies.html.j2` draw, as filters of the template."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardline.records.reports import ReportedRun
from shardline.report.charts.scatter import Point, scatter
from shardline.report.charts.varied import Trial, effects, parallel_coordinates
from shardline.report.charts.workflow import lay_out
from shardline.report.leaderboard import Group

MAX_BARS = 100
MAX_LISTED = 8
# In the order of time; "compute" alone brings the model on.
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
    """Return a group's measured runs with the settings that differ among them."""
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


def effects_chart(group: Group) -> dict[str, Any] | None:
    """Return the small panels of each setting's effect; None where nothing was varied."""
    return effects(trials_of(group), group.metric)


def parallel_chart(group: Group) -> dict[str, Any] | None:
    """Return the parallel coordinates; None where fewer than two settings were varied."""
    return parallel_coordinates(trials_of(group), group.metric, group.mode)


def scatter_chart(group: Group) -> dict[str, Any] | None:
    """Return the runs over any two of their numbers; None where fewer than two differ."""
    points = [Point(series=entry.series, figures=_numbers(entry.run)) for entry in group.entries]
    varied = sorted({key for entry in group.entries for key in entry.run.varied})
    return scatter(points, varied, f"held-out {group.metric}")


def _numbers(run: ReportedRun) -> dict[str, Any]:
    """Return what may be a number of a run: held-out metrics, what training measured, settings."""
    ranks = (run.resources or {}).get("ranks") or ()
    return {
        f"held-out {run.metric}": run.value,
        **{f"held-out {key}": value for key, value in run.held_out.items()},
        "validation": (run.best_validation or {}).get("value"),
        "training time (s)": run.training.duration_s,
        "steps": run.training.steps,
        "samples per second": (run.throughput or {}).get("samples_per_s"),
        "goodput": (run.goodput or {}).get("share"),
        "peak memory of a rank (bytes)": _most(ranks, "peak_rss_bytes"),
        "peak memory of a GPU (bytes)": _most(ranks, "peak_gpu_bytes"),
        "CPU time of all ranks (s)": sum(rank.get("cpu_s") or 0 for rank in ranks)
        if ranks
        else None,
        **{key: value for key, value in run.settings.items() if key not in run.varied_values},
        **{key: value for key, value in run.varied_values.items() if key != "dataset"},
    }


def _most(ranks: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return max((rank[key] for rank in ranks if rank.get(key)), default=None)


def goodput_bars(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Return a bar per run that measured where its time went, at most the first 100.

    Returns:
        Per run `title`, `elapsed_s`, `share` (of computing, 0 to 1, None if unknown) and `parts`:
        `name` and `label`, `seconds` (None if unknown) and `percent` of the elapsed time.
    """
    known = [(run, run.goodput) for run in runs if run.goodput and run.goodput.get("elapsed_s")]
    names = Counter(run.name for run, _ in known)
    return [
        {
            "title": run.name if names[run.name] == 1 else run.id,
            "elapsed_s": goodput["elapsed_s"],
            "share": goodput.get("share"),
            "parts": _parts(goodput),
        }
        for run, goodput in known[:MAX_BARS]
    ]


def _parts(goodput: Mapping[str, Any]) -> list[dict[str, Any]]:
    seconds = {name: goodput.get("parts", {}).get(name) for name in GOODPUT_PARTS}
    return [
        {
            "name": name,
            "label": label,
            "seconds": seconds[name],
            "percent": round(100 * (seconds[name] or 0) / goodput["elapsed_s"], 2),
        }
        for name, label in GOODPUT_PARTS.items()
    ]


def shares(values: Sequence[float]) -> str:
    """Write shares of ranks in per cent: each of up to eight, the least and the most of more."""
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
