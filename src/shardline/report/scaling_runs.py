"""Scaling studies as the report reads them: one run trained at several numbers of ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from shardline.config.plans import Size, Study
from shardline.records.reports import ReportedRun
from shardline.report.charts.axes import Spec
from shardline.report.charts.scaling_curves import Measured, Scaled, scale, scaling_charts


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """A study with what its runs measured, as the page draws it.

    Attributes:
        sizes: Each size against the smallest one, by number of ranks; without those whose run is
            not among the report's.
        chart: Vega-Lite specification; None where nothing was measured.
    """

    study: Study
    sizes: Sequence[Scaled]
    chart: Spec | None

    @property
    def finding(self) -> str:
        """What the largest size came to, in words."""
        if not self.sizes:
            return "No run of this study is there yet."
        first, last = self.sizes[0].measured, self.sizes[-1].measured
        if self.sizes[-1].efficiency is None or len(self.sizes) == 1:
            return "Throughput is known of too few sizes to be compared."
        return (
            f"{last.ranks} ranks ({last.label}) reach {self.sizes[-1].speedup:.2f} times the throughput of "
            f"{first.ranks} ({first.label}): {100 * self.sizes[-1].efficiency:.0f} % of the ideal."
        )


def view_study(study: Study, runs: Iterable[ReportedRun]) -> StudyView:
    """Hold a study's runs against its smallest size.

    Args:
        runs: Any runs, its own among them.
    """
    by_key = {run.id: run for run in runs}
    found = [_measured(size, by_key[size.run]) for size in study.sizes if size.run in by_key]
    sizes = scale(found, study.mode) if found else []
    return StudyView(study=study, sizes=sizes, chart=scaling_charts(sizes))


def _measured(size: Size, run: ReportedRun) -> Measured:
    speed, steps = run.throughput, run.training.steps
    batch, losses = speed.global_batch if speed else None, run.curves.get("val_loss")
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
    """Return the share of its steps that each rank waited for batches; nothing where one did not measure it."""
    shares = []
    for rank in run.resources.ranks if run.resources else ():
        if rank.data_wait_s is UNSET or not rank.compute_s:
            return []
        shares.append(rank.data_wait_s / (rank.data_wait_s + rank.compute_s))
    return shares
