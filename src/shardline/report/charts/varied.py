"""Charts of varied settings: the effect of each setting, and all settings side by side.

As in the learning curves, field names are fixed; names of settings appear only as titles or values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import altair as alt

from shardline.report.charts.axes import Spec, is_log, short, y_axis
from shardline.report.charts.series import Series
from shardline.report.charts.setting_axis import Axis, shown, x_axis

# From worst to best; safe for color blindness and legible on both backgrounds.
RESULT_COLORS = ("#d9730d", "#8a8f98", "#3f74d1")
_RULE_COLOR = "#8a8f98"
_ROW = 15  # pixels between rows of names

_PLACE = {
    "x": alt.X("axis:O", axis=None, scale=alt.Scale(padding=0.5)),
    "y": alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[0, 1])),
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings and result of a run.

    Attributes:
        series: Name and color of the run.
        value: Finite value of the headline metric.
        settings: Settings by dotted key; all trials have the same keys.
    """

    series: Series
    value: float
    settings: Mapping[str, object]


def effects(trials: Sequence[Trial], metric: str) -> Spec | None:
    """Build a panel per setting: headline metric by value of the setting, and the mean per value.

    Args:
        trials: Trials, best first.
        metric: Name of the headline metric.

    Returns:
        Vega-Lite specification; None if nothing varies. An axis is logarithmic if its values span a factor
        of ten, and categorical if they are not all numbers.
    """
    axes = _axes(trials)
    if not axes:
        return None
    rows = [
        {
            **_tip(trial, axes, metric),
            "label": trial.series.label,
            "value": short(trial.value),
            **{
                f"s{index}": axis.plotted(trial.settings[axis.key])
                for index, axis in enumerate(axes)
            },
        }
        for trial in reversed(trials)
    ]
    colors = {trial.series.label: trial.series.color for trial in trials}
    results = [trial.value for trial in trials]
    panels = [_panel(axis, index, metric, colors, results) for index, axis in enumerate(axes)]
    return dict(alt.concat(*panels, columns=3, data=alt.InlineData(values=rows)).to_dict())


def _panel(
    axis: Axis, index: int, metric: str, colors: Mapping[str, str], results: Sequence[float]
) -> Any:
    x = x_axis(axis, f"s{index}")
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    points = (
        alt.Chart()
        .mark_point(filled=True, size=48, opacity=0.85, tooltip=alt.TooltipContent("data"))
        .encode(
            x=x,
            y=y_axis("value:Q", results, metric),
            color=alt.Color("label:N", scale=scale, legend=None),
        )
    )
    # a line between categories has no meaning
    style: Spec = {"color": _RULE_COLOR}
    mean = (
        alt.Chart().mark_line(strokeWidth=1.25, strokeDash=[4, 3], **style)
        if axis.is_numeric
        else alt.Chart().mark_tick(thickness=2, width=36, **style)
    ).encode(x=x, y=y_axis("mean(value):Q", results, metric))
    layers = (mean.properties(name=f"means_{index}"), points.properties(name=f"trials_{index}"))
    return alt.layer(*layers).properties(height=170, width=280)


def parallel_coordinates(
    trials: Sequence[Trial], metric: str, mode: str, log: Mapping[str, bool] | None = None
) -> Spec | None:
    """Build parallel coordinates: a vertical axis per setting, and a line per run colored by result.

    Args:
        trials: Trials, best first; drawn in reverse so that the best is on top.
        metric: Name of the headline metric, which is the last axis.
        mode: "max" if higher is better, else "min".
        log: Whether the scale is logarithmic, by key of each setting with a range; None if ranges are unknown.

    Returns:
        Vega-Lite specification; None if fewer than two settings vary.
    """
    values = [trial.value for trial in trials]
    axes = _axes(trials, log or {})
    result = Axis(metric, values, None if log is None or not values else is_log(values))
    if len(axes) < 2:
        return None
    shares = [
        [*(axis.at(trial.settings[axis.key]) for axis in axes), result.at(trial.value)]
        for trial in trials
    ]
    rows = [
        {
            **_tip(trial, axes, metric),
            "result": short(trial.value),
            "axis": list(range(len(share))),
            "at": [short(one) for one in share],
        }
        for trial, share in zip(trials, shares, strict=True)
    ]
    names = [
        {"axis": index, "at": 1, "text": axis.key} for index, axis in enumerate((*axes, result))
    ]
    rows_of_names = 2 if len(names) > 3 else 1
    ticks = [tick for index, axis in enumerate(axes) for tick in axis.ticks(index)]
    layers = (
        alt.Chart(alt.InlineData(values=names)).mark_rule(color=_RULE_COLOR).encode(x=_PLACE["x"]),
        _trial_lines(rows[::-1], mode),
        _texts(ticks, align="right", dx=-6, fontSize=11, limit=_share(1, len(names), most=90)),
        _texts(result.ticks(len(axes)), align="left", dx=6, fontSize=11),
        *(
            # neighbors are in different rows, so that each name has more width
            _texts(
                names[row::rows_of_names],
                dy=-18 - row * _ROW,
                fontSize=12,
                fontWeight=600,
                limit=_share(rows_of_names, len(names), most=220),
            )
            for row in range(rows_of_names)
        ),
    )
    named = [layer.properties(name=f"layer_{index}") for index, layer in enumerate(layers)]
    return dict(alt.layer(*named).properties(height=220, width=600).to_dict())


def _share(axes: int, of: int, *, most: int) -> Any:
    """Return the width of this number of axes as an expression of the chart's width."""
    return alt.ExprRef(f"max(24, min({most}, {axes} * width / {of} - 10))")


def _trial_lines(rows: Sequence[Spec], mode: str) -> Any:
    hover = alt.selection_point(
        name="hovered", fields=["run"], on="pointerover", clear="pointerout", empty=False
    )
    values = [row["result"] for row in rows]
    # the median, so that one outlier does not make all other runs look alike
    domain = [min(values), short(median(values)), max(values)]
    colors = RESULT_COLORS if mode == "max" else RESULT_COLORS[::-1]
    scale = alt.Scale(type="linear", domain=domain, range=list(colors), interpolate="rgb")
    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .transform_flatten(["axis", "at"])
        .mark_line(tooltip=alt.TooltipContent("data"))
        .encode(
            **_PLACE,
            detail="run:N",
            color=alt.Color("result:Q", scale=scale, legend=None),
            strokeWidth=alt.condition(hover, alt.value(4), alt.value(1.75)),
            opacity=alt.condition(
                hover, alt.value(1), alt.value(0.75 if len(rows) <= 100 else 0.35)
            ),
        )
        .add_params(hover)
    )


def _texts(rows: Sequence[Spec], **style: Any) -> Any:
    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_text(**style)
        .encode(**_PLACE, text="text:N")
    )


def _tip(trial: Trial, axes: Sequence[Axis], metric: str) -> Spec:
    """Return the lines of a tooltip: the run, its result and its varied settings."""
    settings = [f"{axis.key} {shown(trial.settings[axis.key])}" for axis in axes]
    return {"run": trial.series.run, "said": [f"{metric} {shown(trial.value)}", *settings]}


def _axes(trials: Sequence[Trial], log: Mapping[str, bool] | None = None) -> list[Axis]:
    keys = trials[0].settings if trials else ()
    axes = [
        Axis(key, [trial.settings[key] for trial in trials], (log or {}).get(key)) for key in keys
    ]
    return [axis for axis in axes if len({shown(value) for value in axis.values}) > 1]
