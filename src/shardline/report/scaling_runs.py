"""Scaling studies of the report: one run trained at several numbers of ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from shardline.config.resolved import Size, Study
from shardline.records.reported_runs import ReportedRun
from shardline.report.charts.axes import Spec
from shardline.report.charts.scaling_curves import Measured, Scaled, scale, scaling_charts


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """Scaling study with the measurements of its runs.

    Attributes:
        sizes: Sizes compared with the smallest size, by number of ranks; sizes without a run in the report
            are left out.
        chart: Vega-Lite specification; None if nothing was measured.
    """

    study: Study
    sizes: Sequence[Scaled]
    chart: Spec | None

    @property
    def finding(self) -> str:
        """Sentence about the result of the largest size."""
        if not self.sizes:
            return "No run of this study has finished yet."
        first, last = self.sizes[0].measured, self.sizes[-1].measured
        if self.sizes[-1].efficiency is None or len(self.sizes) == 1:
            return "Too few sizes have a measured throughput to compare them."
        return (
            f"{last.ranks} ranks ({last.label}) reach {self.sizes[-1].speedup:.2f} times the throughput of "
            f"{first.ranks} ({first.label}): {100 * self.sizes[-1].efficiency:.0f} % of the ideal."
        )


def view_study(study: Study, runs: Iterable[ReportedRun]) -> StudyView:
    """Compare the runs of a study with its smallest size.

    Args:
        runs: All runs of the report.
    """
    by_key = {run.id: run for run in runs}
    found = [_measured(size, by_key[size.run]) for size in study.sizes if size.run in by_key]
    sizes = scale(found, study.mode) if found else []
    return StudyView(study=study, sizes=sizes, chart=scaling_charts(sizes))


def _measured(size: Size, run: ReportedRun) -> Measured:
    speed, steps = run.throughput, run.training.steps
    batch, losses = speed.global_batch if speed else None, run.curve_of_loss("val")
    return Measured(
        label=size.label,
        ranks=size.ranks,
        run=run.name,
        duration_s=run.training.duration_s,
        samples=batch * steps if batch and steps else None,
        step_s=speed.step_s.median if speed and speed.step_s else None,
        samples_per_s=speed.samples_per_s if speed else None,
        loss=losses.values[-1] if losses and losses.values else None,
        waiting=_waiting(run),
    )


def _waiting(run: ReportedRun) -> list[float]:
    """Return the share of time that each rank waited for batches; empty unless every rank measured it."""
    shares = []
    for rank in run.resources.ranks if run.resources else ():
        if rank.data_wait_s is UNSET or not rank.compute_s:
            return []
        shares.append(rank.data_wait_s / (rank.data_wait_s + rank.compute_s))
    return shares
