"""Scaling studies as the report reads them: one run trained at several numbers of ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardline.config.studies import Size, Study
from shardline.records.reports import ReportedRun
from shardline.report.charts.scaling import Measured, Scaled, scale, scaling_charts


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
    chart: Mapping[str, Any] | None

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
    throughput = run.throughput or {}
    steps = run.training.steps
    batch, losses = throughput.get("global_batch"), run.curves.get("val_loss")
    return Measured(
        label=size.label,
        ranks=size.ranks,
        run=run.name,
        duration_s=run.training.duration_s,
        samples=batch * steps if batch and steps else None,
        step_s=(throughput.get("step_s") or {}).get("median"),
        samples_per_s=throughput.get("samples_per_s"),
        loss=losses.values[-1] if losses and losses.values else None,
        waiting=_waiting(run),
    )


def _waiting(run: ReportedRun) -> list[float]:
    """Return the share of its steps that each rank waited for batches; nothing where one did not measure it."""
    ranks = (run.resources or {}).get("ranks") or []
    spent = [(rank.get("data_wait_s"), rank.get("compute_s")) for rank in ranks]
    if any(wait is None or not compute for wait, compute in spent):
        return []
    return [wait / (wait + compute) for wait, compute in spent]
