"""Studies of the report: the trials of each sweep, the best of them, and what its settings explain."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardline.records.reported_runs import ReportedRun
from shardline.records.sweeps import ReportedStudy, Trial
from shardline.report.charts.axes import Spec
from shardline.report.charts.series import Series
from shardline.report.charts.setting_axis import shown
from shardline.report.charts.sweep_curves import best_so_far, slices
from shardline.report.charts.varied import Trial as Line
from shardline.report.charts.varied import parallel_coordinates
from shardline.report.rung_views import RungView, view_rungs


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """A study with its charts.

    Attributes:
        best: The best trial; None if no trial has a value.
        winner: Run of the report with the best trial's settings; None if the run table has none.
        progress: Chart of the best value so far.
        slices: Charts of values by setting.
        parallel: Parallel coordinates.
    """

    study: ReportedStudy
    best: Trial | None
    winner: ReportedRun | None
    progress: Spec | None
    slices: Spec | None
    parallel: Spec | None

    @property
    def failures(self) -> list[tuple[str, list[int]]]:
        """Reasons why trials have no value, the most frequent first, with the numbers of the trials."""
        found: dict[str, list[int]] = {}
        for one in self.study.trials:
            if one.value is None:
                found.setdefault(one.failure or "no value", []).append(one.trial)
        return sorted(found.items(), key=lambda item: -len(item[1]))

    @property
    def cost(self) -> float:
        """Seconds of all trainings."""
        return sum(one.seconds or 0.0 for one in self.study.trials)

    @property
    def num_linked(self) -> int:
        """Number of trials that an earlier run gave."""
        return sum(one.linked for one in self.study.trials)

    @property
    def num_failed(self) -> int:
        """Number of trials without a value."""
        return sum(one.value is None for one in self.study.trials)

    @property
    def rungs(self) -> list[RungView]:
        """Rungs at which trials ended."""
        return view_rungs(self.study)

    @property
    def importance(self) -> list[tuple[str, float]]:
        """Each setting with its share of the variance in percent."""
        return [(key, round(100 * share, 1)) for key, share in self.study.importance.items()]

    @property
    def settings_of_best(self) -> list[tuple[str, str]]:
        """Settings of the best trial as text, the most important first."""
        found = self.best.settings if self.best else {}
        shares = self.study.importance
        keys = sorted(found, key=lambda key: -shares.get(key, 0.0))
        return [(key, shown(found[key])) for key in keys]


def view_sweep(study: ReportedStudy, runs: Sequence[ReportedRun]) -> SweepView:
    """Return a study with its charts.

    Args:
        runs: All runs of the report.
    """
    best = next((one for one in study.trials if one.trial == study.best), None)
    winner = next((run for run in runs if best and run.id in best.runs), None)
    known = [one for one in study.trials if one.value is not None]
    known.sort(key=lambda one: (one.value or 0.0) * (1 if study.mode == "min" else -1))
    lines = [
        Line(
            series=Series(run=f"trial {one.trial}", rank=place, curves={}),
            value=one.value or 0.0,
            settings={key: one.settings.get(key) for key in study.keys},
        )
        for place, one in enumerate(known)
    ]
    log = {key: "log" in kind for key, kind in study.kinds.items() if kind != "choices"}
    return SweepView(
        study=study,
        best=best,
        winner=winner,
        progress=best_so_far(study.trials, study.metric, study.mode),
        slices=slices(study.trials, study.keys, study.metric, log, study.best),
        parallel=parallel_coordinates(lines, study.metric, study.mode, log) if lines else None,
    )
