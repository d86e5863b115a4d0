"""Scaling: running time, throughput, efficiency and loss against ranks, beside the ideal.

Strong scaling keeps the global batch, so that ideally n times the ranks take a step in 1/n of the
time (Amdahl 1967, doi:10.1145/1465482.1465560). Weak scaling keeps the batch of each rank, so that
ideally a step takes as long and n times the ranks consume n times the samples in it (Gustafson
1988, doi:10.1145/42411.42415). Ideal throughput is the same in both: proportional to the ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from shardline.report.charts.axes import Spec
from shardline.report.charts.series import PALETTE

_Pairs = Sequence[tuple[float | None, float | None]]  # measured and ideal, by size
_IDEAL_COLOR = "#8a8f98"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size of a study as it was measured; what is unknown is None.

    Attributes:
        label: Nodes x devices, such as "2x4".
        ranks: World size.
        duration_s: Running time of the training, all attempts.
        samples: Samples that it consumed in all.
        step_s: Median step time after warm-up.
        samples_per_s: Throughput after warm-up, all ranks together.
        loss: Final validation loss.
        waiting: Share of its steps that each rank waited for batches, by rank.
    """

    label: str
    ranks: int
    run: str
    duration_s: float | None = None
    samples: int | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    loss: float | None = None
    waiting: Sequence[float] = ()

    @property
    def most_waiting(self) -> float | None:
        """The share of the rank that waited most."""
        return max(self.waiting, default=None)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A measured size compared with the smallest one.

    Attributes:
        measured: The size.
        ideal_duration_s: What the smallest size's time would become by its ranks and samples.
        ideal_samples_per_s: The smallest size's throughput times the ratio of the ranks.
        speedup: Throughput as a multiple of the smallest size's.
        efficiency: Throughput as a share of the ideal.
    """

    measured: Measured
    ideal_duration_s: float | None
    ideal_samples_per_s: float | None
    speedup: float | None
    efficiency: float | None


def scale(sizes: Sequence[Measured], mode: str) -> list[Scaled]:
    """Hold each size against the smallest.

    The ideal time follows the work that was done: strong scaling, and weak scaling for a number of
    epochs, train on as many samples at each size; weak scaling for a number of steps trains on
    more of them the more ranks there are. Where the samples are unknown, the mode decides.

    Args:
        sizes: In any order.
        mode: "strong" or "weak".

    Returns:
        By number of ranks, rising.
    """
    ordered = sorted(sizes, key=lambda size: (size.ranks, size.label))
    return [_against(size, ordered[0], mode) for size in ordered]


def _against(size: Measured, base: Measured, mode: str) -> Scaled:
    more = size.ranks / base.ranks
    work = more if mode == "weak" else 1.0
    if size.samples and base.samples:
        work = size.samples / base.samples
    speedup = None
    if size.samples_per_s and base.samples_per_s:
        speedup = size.samples_per_s / base.samples_per_s
    return Scaled(
        measured=size,
        ideal_duration_s=base.duration_s * work / more if base.duration_s else None,
        ideal_samples_per_s=base.samples_per_s * more if base.samples_per_s else None,
        speedup=speedup,
        efficiency=speedup / more if speedup else None,
    )


def scaling_charts(scaled: Sequence[Scaled]) -> Spec | None:
    """Build a Vega-Lite specification of panels over the sizes.

    Args:
        scaled: What `scale` gave.

    Returns:
        Running time (s), throughput (samples/s), efficiency (per cent), waiting for batches (per
        cent of the steps, of the rank that waited most) and final validation loss; a panel without
        any value is left out, and None where all are. Dashed lines are the ideal.
    """
    panels: list[tuple[str, _Pairs]] = [
        ("running time, s", [(s.measured.duration_s, s.ideal_duration_s) for s in scaled]),
        ("throughput, samples/s", [(s.measured.samples_per_s, s.ideal_samples_per_s) for s in scaled]),
        ("efficiency, %", [(_percent(s.efficiency), 100.0) for s in scaled]),
        ("waiting for batches, %", [(_percent(s.measured.most_waiting), None) for s in scaled]),
        ("final validation loss", [(s.measured.loss, None) for s in scaled]),
    ]  # fmt: skip
    drawn = [panel for panel in panels if any(value is not None for value, _ in panel[1])]
    labels = [s.measured.label for s in scaled]
    charts = [_panel(labels, index, *panel) for index, panel in enumerate(drawn)]
    return dict(alt.concat(*charts, columns=2).to_dict()) if charts else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _panel(labels: Sequence[str], index: int, title: str, pairs: _Pairs) -> Any:
    rows = [
        {
            "size": label,
            "kind": kind,
            "value": float(f"{value:.5g}"),
            "run": label,
            "said": [_tooltip_line(kind, title, value)],
        }
        for label, pair in zip(labels, pairs, strict=True)
        for kind, value in zip(("measured", "ideal"), pair, strict=True)
        if value is not None
    ]
    domain = ["measured", "ideal"]
    scale = alt.Scale(domain=domain, range=[PALETTE[0], _IDEAL_COLOR])
    axis = alt.Axis(labelAngle=0)
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(
            strokeWidth=1.75,
            point=alt.OverlayMarkDef(size=44, filled=True),
            tooltip=alt.TooltipContent("data"),
        )
        .encode(
            x=alt.X("size:O", sort=list(labels), title="nodes x devices", axis=axis),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
            color=alt.Color("kind:N", scale=scale, legend=None),
            strokeDash=alt.StrokeDash(
                "kind:N", scale=alt.Scale(domain=domain, range=[[1, 0], [4, 3]]), legend=None
            ),
        )
        .properties(name=f"sizes_{index}", height=190, width=280)
    )


def _tooltip_line(kind: str, title: str, value: float) -> str:
    return f"{kind}: {title.partition(',')[0]} {value:.4g}{title.partition(',')[2]}"
