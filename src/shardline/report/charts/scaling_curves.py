"""Scaling charts: running time, throughput, efficiency and loss by number of ranks, with the ideal.

Strong scaling keeps the global batch: ideally, n times the ranks take 1/n of the time per step (Amdahl
1967, doi:10.1145/1465482.1465560). Weak scaling keeps the batch of each rank: ideally, a step takes the same
time and n times the ranks consume n times the samples (Gustafson 1988, doi:10.1145/42411.42415). In both,
ideal throughput is proportional to the ranks.
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
    """Measurements of one size of a study; None if unknown.

    Attributes:
        label: Nodes x devices, such as "2x4".
        ranks: World size.
        duration_s: Running time of the training over all attempts, in seconds.
        samples: Number of consumed samples.
        step_s: Median step time after warm-up, in seconds.
        samples_per_s: Throughput of all ranks after warm-up.
        loss: Final validation loss.
        waiting: Share of time that each rank waited for batches.
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
        """Largest share over the ranks."""
        return max(self.waiting, default=None)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A measured size compared with the smallest one.

    Attributes:
        measured: Measurements of the size.
        ideal_duration_s: Time of the smallest size, scaled by ranks and samples.
        ideal_samples_per_s: Throughput of the smallest size times the ratio of ranks.
        speedup: Throughput divided by the throughput of the smallest size.
        efficiency: Throughput as a share of the ideal.
    """

    measured: Measured
    ideal_duration_s: float | None
    ideal_samples_per_s: float | None
    speedup: float | None
    efficiency: float | None


def scale(sizes: Sequence[Measured], mode: str) -> list[Scaled]:
    """Compare each size with the smallest size.

    The ideal time follows the number of consumed samples. If this number is unknown, strong scaling assumes
    equal samples at each size, and weak scaling assumes samples proportional to the ranks.

    Args:
        sizes: Sizes in any order.
        mode: "strong" or "weak".

    Returns:
        Sizes by rising number of ranks.
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
        scaled: Sizes from `scale`.

    Returns:
        Panels for running time (s), throughput (samples/s), efficiency (%), waiting for batches (% of time,
        for the rank that waited most) and final validation loss. Panels without values are left out; None if
        all are. Dashed lines show the ideal.
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
