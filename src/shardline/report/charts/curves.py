"""Learning curves as Vega-Lite specifications.

Field names in a specification are fixed (run, label, step, value). Names of metrics and runs appear only
as values, so that Vega cannot read a name as an expression or a nested field.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from shardline.records.reported_parts import Curve
from shardline.report.charts.axes import TIME_UNITS, Spec, short, time_unit, y_axis
from shardline.report.charts.series import Series, thin

MAX_POINTS_PER_CURVE = 300
MAX_POINTS_PER_PANEL = 12_000  # keeps hovering fast; 100 runs get 120 points each
MAX_POINTS_OFFERED = (
    60_000  # in all panels that are hidden at first, since they make the page large, too
)
_PICKED = "length(picked) == 0 || indexof(picked, datum.label) >= 0"


def learning_curves(
    series: Sequence[Series], metrics: Sequence[str], others: Sequence[str] = ()
) -> Spec | None:
    """Build one Vega-Lite specification with a panel per metric.

    Args:
        series: Runs, best first; drawn in reverse so that the best is on top.
        metrics: Metric names in reading order; metrics without a record are left out.
        others: Metrics whose panels are hidden until a reader chooses them.

    Returns:
        Specification; None if nothing was recorded. The page's script sets the number of columns, the panel
        width, the signal `picked` (labels to highlight), the horizontal axis from `usermeta.axes` (field to
        title; `step` at first) and the shown panels from `usermeta.panels` (title, whether shown at first).
    """
    drawn = [name for name in metrics if any(_has(one, name) for one in series)]
    if not drawn:
        return None
    hidden = [name for name in others if any(_has(one, name) for one in series)]
    shared = MAX_POINTS_OFFERED // max(1, len(hidden))
    limits = [
        min(MAX_POINTS_PER_CURVE, max(4, points // len(series)))
        for points in (MAX_POINTS_PER_PANEL, min(MAX_POINTS_PER_PANEL, shared))
    ]
    unit = time_unit(_longest_s(series))
    panels = [
        _panel(series, name, index, limits[name in hidden], unit)
        for index, name in enumerate([*drawn, *hidden])
    ]
    chart = alt.concat(*panels, columns=3).add_params(alt.param(name="picked", value=[]))
    spec = dict(chart.resolve_scale(x="shared").to_dict())
    titles = [{"title": name, "shown": name in drawn} for name in (*drawn, *hidden)]
    spec["usermeta"] = {"axes": _axes(series, unit), "panels": titles}
    # Not by add_params: inside a concatenation, Altair 6.3 adds a selection to every layer, and Vega
    # rejects the duplicate signal.
    spec["params"] += [_hover_params(index) for index in range(len(panels))]
    return spec


def _has(series: Series, metric: str) -> bool:
    return metric in series.curves and bool(series.curves[metric].steps)


def _longest_s(series: Sequence[Series]) -> float:
    return max(
        (curve.wall_s[-1] for one in series for curve in one.curves.values() if curve.wall_s),
        default=0.0,
    )


def _axes(series: Sequence[Series], unit: str) -> dict[str, str]:
    curves = [curve for one in series for curve in one.curves.values()]
    axes = {"step": "step"}
    if any(curve.epochs for curve in curves):
        axes["epoch"] = "epoch"
    if any(curve.wall_s for curve in curves):
        axes["time"] = f"training time, {unit}"
    return axes


def _columns(one: Series, curve: Curve, unit: str) -> dict[str, Sequence[float]]:
    columns = {
        "epoch": one.epochs_at(curve) if curve.epochs else (),
        "time": [seconds / TIME_UNITS[unit] for seconds in curve.wall_s],
        "value": curve.values,
    }
    return {
        "step": curve.steps,
        **{name: list(map(short, column)) for name, column in columns.items()},
    }


def _panel(series: Sequence[Series], metric: str, index: int, max_points: int, unit: str) -> Any:
    drawn = [(one, thin(one.curves[metric], max_points)) for one in series if _has(one, metric)]
    rows = [
        {"run": one.run, "label": one.label, **_columns(one, curve, unit)}
        for one, curve in reversed(drawn)
    ]
    values = [value for _, curve in drawn for value in curve.values]
    # over all runs: panels share the scale, and Vega warns if their domains differ
    colors = {one.label: one.color for one in series}
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    base = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_flatten(["step", "epoch", "time", "value"])
        .encode(
            x=alt.X("step:Q", title="step", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=4)),
            y=y_axis("value:Q", values, metric.replace("_", " ")),
            color=alt.Color("label:N", scale=scale, legend=None),
            detail="run:N",
        )
    )
    sparse = max(len(curve.steps) for _, curve in drawn) <= 40
    layers = _lines(base, index, sparse=sparse), _hover_points(base, index)
    return alt.layer(*layers).properties(height=220, width=280)


def _lines(base: Any, index: int, *, sparse: bool) -> Any:
    # Validation often has few points, sometimes one, which a line alone would not show.
    point: Any = alt.OverlayMarkDef(size=22, filled=True) if sparse else False
    # Altair numbers unnamed views with a global counter, so the same inputs would give other bytes.
    return (
        base.mark_line(strokeWidth=1.75, point=point)
        .encode(opacity=alt.condition(_PICKED, alt.value(0.95), alt.value(0.08)))
        .properties(name=f"lines_{index}")
    )


def _hover_points(base: Any, index: int) -> Any:
    hovered: Any = {"param": f"hover_{index}", "empty": False}
    # The page's script formats the whole datum: with `nearest`, Vega-Lite 6.4 reads a nominal field of
    # a tooltip encoding from the wrong object and shows "undefined".
    return (
        base.transform_filter(_PICKED)
        .mark_point(filled=True, size=70, tooltip=alt.TooltipContent("data"))
        .encode(opacity=alt.condition(hovered, alt.value(1), alt.value(0)))
        .properties(name=f"points_{index}")
    )


def _hover_params(index: int) -> Spec:
    select = {
        "type": "point",
        "fields": ["run", "step"],  # flattened points share their row's hidden id
        "nearest": True,
        "on": "pointerover",
        "clear": "pointerout",
    }
    return {"name": f"hover_{index}", "select": select, "views": [f"points_{index}"]}
