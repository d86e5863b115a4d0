"""Machine curves: memory, CPU and GPU use of the ranks over time.

The page contains each specification once. Runs share specifications, and each run has its own rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt

from shardline.core.canonical import short_digest
from shardline.records.measured import Resources, UsageCurve
from shardline.report.charts.axes import TIME_UNITS, Spec, short, time_unit
from shardline.report.charts.series import PALETTE

MAX_RANKS = len(PALETTE)
_FEW_POINTS = 40  # up to this number, each point is a visible dot
_MEMORY_UNITS = {"MB": 1e6, "GB": 1e9}
_TITLES = {
    "rss_bytes": "memory",
    "cpu_percent": "CPU",
    "gpu_bytes": "GPU memory",
    "gpu_percent": "GPU use",
}
_OF_A_CORE = "% of a core"
_ALWAYS = ("s", "attempt", "rss_bytes", "cpu_percent")
_Panels = tuple[tuple[str, str], ...]  # column and unit


@dataclass(frozen=True, kw_only=True)
class MachineView:
    """Machine curves of a run.

    Attributes:
        name: Name of the specification, which several runs can share.
        spec: Vega-Lite specification; its data set `points` is filled with the rows.
        rows: One row per drawn rank.
        legend: Colors by label; empty for one rank.
        num_ranks: Number of sampled ranks.
        titles: Titles of the panels.
        description: Alternative text of the figure.
    """

    name: str
    spec: Spec
    rows: Sequence[Spec]
    legend: Mapping[str, str]
    num_ranks: int
    titles: Sequence[str]
    description: str


def view_machine(resources: Resources | None) -> MachineView | None:
    """Return the machine curves of the (at most eight) ranks with the most memory.

    Args:
        resources: Resource use of the ranks of a run.

    Returns:
        Machine curves; None if no rank recorded two points.
    """
    used = resources.ranks if resources else []
    ranks: dict[int, UsageCurve] = {rank.rank: rank.curve for rank in used if rank.curve}
    if not ranks:
        return None
    drawn = dict(sorted(sorted(ranks.items(), key=_by_peak)[:MAX_RANKS]))
    unit = time_unit(max(curve.s[-1] for curve in drawn.values()))
    values = {name: [v for one in drawn.values() for v in _known(one, name)] for name in _TITLES}
    panels = tuple((name, _unit_of(name, found)) for name, found in values.items() if found)
    is_sparse = max(len(curve.s) for curve in drawn.values()) <= _FEW_POINTS
    labels = [f"rank {rank}" for rank in drawn]
    curves = zip(labels, drawn.values(), strict=True)
    return MachineView(
        name=f"machine-{short_digest([panels, unit, is_sparse])}",
        spec=_spec(panels, unit, is_sparse),
        rows=[_row(place, *curve, panels, unit) for place, curve in enumerate(curves)],
        legend=dict(zip(labels, PALETTE, strict=False)) if len(labels) > 1 else {},
        num_ranks=len(ranks),
        titles=tuple(_TITLES[name] for name, _ in panels),
        description=", ".join(
            f"{_TITLES[name]} at most {_in(of, max(values[name])):.3g} {of}" for name, of in panels
        ),
    )


def _by_peak(item: tuple[int, UsageCurve]) -> tuple[float, int]:
    rank, curve = item
    return -max(curve.rss_bytes), rank


def _known(curve: UsageCurve, name: str) -> list[float]:
    return [value for value in getattr(curve, name) or () if value is not None]


def _unit_of(name: str, values: Sequence[float]) -> str:
    if name.endswith("_bytes"):
        return "GB" if max(values) >= _MEMORY_UNITS["GB"] else "MB"
    return _OF_A_CORE if name == "cpu_percent" else "%"


def _row(place: int, label: str, curve: UsageCurve, panels: _Panels, unit: str) -> Spec:
    unknown = [None] * len(curve.s)
    return {
        "run": label,
        "place": place,
        "attempt": list(curve.attempt),
        "time": [short(seconds / TIME_UNITS[unit]) for seconds in curve.s],
        **{
            name: [v if v is None else _in(of, v) for v in getattr(curve, name) or unknown]
            for name, of in panels
        },
    }


def _in(unit: str, value: float) -> float:
    return short(value / _MEMORY_UNITS.get(unit, 1))


@cache
def _spec(panels: _Panels, unit: str, is_sparse: bool) -> Spec:
    charts = [_panel(panels, index, unit, is_sparse) for index in range(len(panels))]
    columns = 2 if len(charts) == 4 else 3
    return dict(alt.concat(*charts, columns=columns).resolve_scale(x="shared").to_dict())


def _panel(panels: _Panels, index: int, unit: str, is_sparse: bool) -> Any:
    name, of = panels[index]
    calculate = (
        f"[format(datum.{name}, '.3~g') + ' {of} at ' + format(datum.time, '.3~g') + ' {unit}']"
    )
    base = (
        alt.Chart(alt.NamedData(name="points"))
        .transform_flatten(["attempt", "time", *(column for column, _ in panels)])
        .transform_calculate("said", calculate)
        .encode(
            x=alt.X("time:Q", title=f"running time, {unit}", axis=alt.Axis(tickCount=4)),
            y=alt.Y(f"{name}:Q", title=f"{_TITLES[name]}, {of}", axis=alt.Axis(tickCount=4)),
            color=alt.Color(
                "place:N",
                scale=alt.Scale(domain=list(range(MAX_RANKS)), range=list(PALETTE)),
                legend=None,
            ),
            detail=["place:N", "attempt:N"],
        )
    )
    line = base.mark_line(strokeWidth=1.5).properties(name=f"use_{index}")
    # visible only if there are few points, but always targets of the pointer
    dots = base.mark_point(
        filled=True, size=22 if is_sparse else 90, opacity=1 if is_sparse else 0,
        tooltip=alt.TooltipContent("data"),
    ).properties(name=f"dots_{index}")  # fmt: skip
    return alt.layer(line, dots).properties(height=150, width=280)
