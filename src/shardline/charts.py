"""Learning curves as Vega-Lite specifications, and the libraries that draw them.

Field names in a specification are ours and fixed (run, label, step, value); a user's metric or run
name only ever appears as a value, so no name can be misread as a Vega expression or a nested field.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert

MAX_POINTS_PER_CURVE = 300
MAX_POINTS_PER_PANEL = 12_000  # hovering stays instant; 100 runs get 120 points each
OTHER_RUNS = "other runs"
OTHER_COLOR = "#9aa1ab"
# Each has at least 3:1 contrast to both page backgrounds (WCAG 2.2, 1.4.11), the best run first.
PALETTE = (
    "#3f74d1",
    "#d9730d",
    "#2b9464",
    "#c2489b",
    "#8b6ad6",
    "#1591a3",
    "#a37a1a",
    "#d4505f",
)
_PICKED = "length(picked) == 0 || indexof(picked, datum.label) >= 0"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric of one run.

    Attributes:
        steps: Optimizer steps, rising.
        values: Metric at each step; finite.
        num_non_finite: Points dropped because they were null, NaN or infinite.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    num_non_finite: int = 0


@dataclass(frozen=True, kw_only=True)
class Series:
    """One run's curves and how they are drawn.

    Attributes:
        run: Name shown in the tooltip.
        rank: 0 for the best run; the first ones have a colour and a legend entry of their own.
        curves: Metric name to curve.
    """

    run: str
    rank: int
    curves: Mapping[str, Curve]

    @property
    def label(self) -> str:
        """Legend entry."""
        return self.run if self.rank < len(PALETTE) else OTHER_RUNS

    @property
    def color(self) -> str:
        """CSS colour."""
        return PALETTE[self.rank] if self.rank < len(PALETTE) else OTHER_COLOR


def thin(curve: Curve, max_points: int) -> Curve:
    """Keep the lowest and highest value of each stretch of steps, so that no spike is lost.

    Args:
        curve: Any curve.
        max_points: Upper bound on the points kept; at least 4.

    Returns:
        The same curve if it is small enough, else at most max_points of its points, the first
        and the last among them.
    """
    num_points = len(curve.steps)
    if num_points <= max_points:
        return curve
    num_buckets = (max_points - 2) // 2
    kept = {0, num_points - 1}
    for bucket in range(num_buckets):
        inside = range(bucket * num_points // num_buckets, (bucket + 1) * num_points // num_buckets)
        kept.add(min(inside, key=curve.values.__getitem__))
        kept.add(max(inside, key=curve.values.__getitem__))
    order = sorted(kept)
    return Curve(
        steps=tuple(curve.steps[index] for index in order),
        values=tuple(curve.values[index] for index in order),
    )


def learning_curves(series: Sequence[Series], metrics: Sequence[str]) -> dict[str, Any] | None:
    """Build one Vega-Lite specification with a panel per metric.

    Args:
        series: Runs, the best first; drawn in reverse so that the best lies on top.
        metrics: Metric names in reading order; those that no run recorded are left out.

    Returns:
        The specification, or None where nothing was recorded. The page's script sets the number
        of columns and the panel width, and the signal `picked` (labels to bring out).
    """
    drawn = [name for name in metrics if any(_has(one, name) for one in series)]
    if not drawn:
        return None
    max_points = min(MAX_POINTS_PER_CURVE, max(4, MAX_POINTS_PER_PANEL // len(series)))
    panels = [_panel(series, name, index, max_points) for index, name in enumerate(drawn)]
    chart = alt.concat(*panels, columns=3).add_params(alt.param(name="picked", value=[]))
    spec = dict(chart.resolve_scale(x="shared").to_dict())
    # Not by add_params: within layers in a concatenation Altair 6.3 gives a selection to every
    # layer, and Vega then stops at the duplicate signal.
    spec["params"] += [_hover_params(index) for index in range(len(panels))]
    return spec


def _has(series: Series, metric: str) -> bool:
    return metric in series.curves and bool(series.curves[metric].steps)


def _panel(series: Sequence[Series], metric: str, index: int, max_points: int) -> Any:
    drawn = [(one, thin(one.curves[metric], max_points)) for one in series if _has(one, metric)]
    rows = [
        {
            "run": one.run,
            "label": one.label,
            "step": curve.steps,
            "value": [float(f"{value:.5g}") for value in curve.values],
        }
        for one, curve in reversed(drawn)
    ]
    colors = {one.label: one.color for one, _ in drawn}
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    base = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_flatten(["step", "value"])
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4)),
            y=_y([value for _, curve in drawn for value in curve.values], metric.replace("_", " ")),
            color=alt.Color("label:N", scale=scale, legend=None),
            detail="run:N",
        )
    )
    sparse = max(len(curve.steps) for _, curve in drawn) <= 40
    layers = _lines(base, index, sparse=sparse), _hover_points(base, index)
    return alt.layer(*layers).properties(height=220, width=280)


def _lines(base: Any, index: int, *, sparse: bool) -> Any:
    # Validation often has a handful of points, sometimes one, which a bare line would not show.
    point: Any = alt.OverlayMarkDef(size=22, filled=True) if sparse else False
    # Altair's own view names come from a counter that never restarts: the same inputs would give
    # other bytes.
    return (
        base.mark_line(strokeWidth=1.75, point=point)
        .encode(opacity=alt.condition(_PICKED, alt.value(0.95), alt.value(0.08)))
        .properties(name=f"lines_{index}")
    )


def _hover_points(base: Any, index: int) -> Any:
    hovered: Any = {"param": f"hover_{index}", "empty": False}
    # The whole datum, laid out by the page's script: with `nearest`, Vega-Lite 6.4 reads a nominal
    # field of a tooltip encoding from the wrong object and shows "undefined".
    return (
        base.transform_filter(_PICKED)
        .mark_point(filled=True, size=70, tooltip=alt.TooltipContent("data"))
        .encode(opacity=alt.condition(hovered, alt.value(1), alt.value(0)))
        .properties(name=f"points_{index}")
    )


def _hover_params(index: int) -> dict[str, Any]:
    select = {
        "type": "point",
        "fields": ["run", "step"],  # flattened points share their row's hidden id
        "nearest": True,
        "on": "pointerover",
        "clear": "pointerout",
    }
    return {"name": f"hover_{index}", "select": select, "views": [f"points_{index}"]}


def _y(values: Sequence[float], title: str) -> alt.Y:
    low, high = min(values), max(values)
    if low <= 0 or high / low <= 50:
        scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=5)
        return alt.Y("value:Q", title=title, scale=scale, axis=axis)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Vega would rule a line at every multiple of every power of ten.
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 3)]
    ticks = ticks if len(powers) <= 3 else ticks[:: 2 * (1 + len(powers) // 9)]
    scale, axis = alt.Scale(type="log", nice=False), alt.Axis(values=ticks, format="~g")
    return alt.Y("value:Q", title=f"{title} (log scale)", scale=scale, axis=axis)


@cache
def javascript_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that needs no network (0.9 MB).

    The version of Vega-Lite is the one that the installed Altair writes. The text may stand
    between script tags as it is, and its names stay out of the page's global scope.
    """
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]
    script = script.replace("\r\n", "\n").replace("</script", r"<\/script")
    return "(() => {" + script.replace("<!--", r"<\!--") + "})();"
