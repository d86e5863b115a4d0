"""Scatter plot of runs over any two numbers that the reader chooses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from shardline.report.charts.axes import Spec, is_log, short
from shardline.report.charts.series import Series

MAX_FIGURES = 40
MIN_POINTS = 3


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a scatter plot.

    Attributes:
        series: Name and color of the run.
        figures: Numbers by name; unknown numbers are None or missing.
    """

    series: Series
    figures: Mapping[str, object]


def scatter(points: Sequence[Point], across: Sequence[str], up: str) -> Spec | None:
    """Build a scatter plot over two numbers, with menus to choose both.

    Args:
        points: Runs, best first; drawn in reverse so that the best is on top.
        across: Candidates for the first horizontal number; the first that differs is used.
        up: First vertical number.

    Returns:
        Vega-Lite specification; None for fewer than three points or two differing numbers. A number whose
        values span a factor of 50 can also be chosen as its decimal logarithm.
    """
    columns = _columns(points)
    names = list(columns)
    if len(names) < 2 or len(points) < MIN_POINTS:
        return None
    y = names.index(up) if up in names else len(names) - 1
    x = next((names.index(name) for name in across if name in names), int(y == 0))
    rows = [
        {
            "run": point.series.run,
            "label": point.series.label,
            "v": [columns[name][index] for name in names],
        }
        for index, point in enumerate(points)
    ]
    colors = {point.series.label: point.series.color for point in points}
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    place: Spec = {
        "scale": alt.Scale(zero=False, padding=12),
        "axis": alt.Axis(tickCount=4, title=None),
    }
    chart = (
        alt.Chart(alt.InlineData(values=rows[::-1]))
        .transform_calculate(x="datum.v[across]", y="datum.v[up]")
        .transform_filter("isValid(datum.x) && isValid(datum.y)")
        .mark_point(filled=True, size=60, opacity=0.85, tooltip=alt.TooltipContent("data"))
        .encode(
            x=alt.X("x:Q", **place),
            y=alt.Y("y:Q", **place),
            color=alt.Color("label:N", scale=scale, legend=None),
        )
        .add_params(_choice("up", "Vertical", names, y), _choice("across", "Horizontal", names, x))
        .properties(name="scatter", height=260, width=600)
    )
    return dict(chart.to_dict())


def _choice(name: str, title: str, names: Sequence[str], value: int) -> Any:
    # options are numbers, so a user's name is never more than a label
    options = list(range(len(names)))
    bind = alt.binding_select(options=options, labels=list(names), name=f"{title} ")
    return alt.param(name=name, value=value, bind=bind)


def _columns(points: Sequence[Point]) -> dict[str, list[float | None]]:
    """Return the differing numbers as columns over all points."""
    names = dict.fromkeys(name for point in points for name in point.figures)
    found: dict[str, list[float | None]] = {}
    for name in names:
        column = [_number(point.figures.get(name)) for point in points]
        known = [value for value in column if value is not None]
        if len(set(known)) < 2:
            continue
        found[name] = column
        if is_log(known):
            found[f"log10 of {name}"] = [
                None if value is None else short(math.log10(value)) for value in column
            ]
    return dict(list(found.items())[:MAX_FIGURES])


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return short(value) if math.isfinite(value) else None
