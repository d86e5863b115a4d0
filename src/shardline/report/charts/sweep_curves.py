"""Charts of a study: the best value so far, and slices through each varied setting."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import altair as alt

from shardline.records.sweeps import Trial
from shardline.report.charts.axes import TIME_UNITS, Spec, log_ticks, short, time_unit, y_axis
from shardline.report.charts.series import PALETTE
from shardline.report.charts.varied import shown

_PANEL = {"height": 170, "width": 280}
_OTHER_COLOR = "#9aa1ab"


def best_so_far(trials: Sequence[Trial], metric: str, mode: str) -> Spec | None:
    """Build two panels: each trial's value and the best so far, by number of trials and by training time.

    Args:
        trials: Trials in order.
        mode: "max" if higher is better, else "min".

    Returns:
        Vega-Lite specification; None if no trial has a value.
    """
    better = max if mode == "max" else min
    costs = [*accumulate(one.seconds or 0.0 for one in trials)]
    unit = time_unit(costs[-1]) if costs else "s"
    rows: list[Spec] = []
    for one, cost in zip(trials, costs, strict=True):
        if one.value is None:
            continue
        best = better(rows[-1]["best"], one.value) if rows else one.value
        rows.append(
            {
                "trial": one.trial,
                "cost": short(cost / TIME_UNITS[unit]),
                "value": short(one.value),
                "best": short(best),
                **_tip(one, metric),
            }
        )
    if not rows:
        return None
    fields = [("trial", "trial")] + (
        [("cost", f"time of all trainings, {unit}")] if costs[-1] else []
    )
    values = [row["value"] for row in rows]
    panels = [
        _progress(field, title, metric, values, index)
        for index, (field, title) in enumerate(fields)
    ]
    return dict(alt.concat(*panels, columns=2, data=alt.InlineData(values=rows)).to_dict())


def _progress(field: str, title: str, metric: str, values: Sequence[float], index: int) -> Any:
    x = alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(nice=True),
        axis=alt.Axis(tickCount=5),
    )
    points = (
        alt.Chart()
        .mark_point(filled=True, size=30, color=_OTHER_COLOR, tooltip=alt.TooltipContent("data"))
        .encode(x=x, y=y_axis("value:Q", values, metric))
    )
    line = (
        alt.Chart()
        .mark_line(interpolate="step-after", color=PALETTE[0], strokeWidth=2)
        .encode(x=x, y=y_axis("best:Q", values, metric))
    )
    layers = (points.properties(name=f"values_{index}"), line.properties(name=f"best_{index}"))
    return alt.layer(*layers).properties(**_PANEL)


def slices(trials: Sequence[Trial], keys: Sequence[str], metric: str) -> Spec | None:
    """Build a panel per setting: the value of each trial against the setting's value.

    Args:
        keys: Varied settings.

    Returns:
        Vega-Lite specification; None if no trial has a value.
    """
    known = [one for one in trials if one.value is not None]
    rows = [
        {
            "value": short(one.value or 0.0),
            **{
                f"s{index}": _plotted(one.settings[key])
                for index, key in enumerate(keys)
                if key in one.settings
            },
            **_tip(one, metric),
        }
        for one in known
    ]
    values = [row["value"] for row in rows]
    panels = [
        alt.Chart()
        .transform_filter(alt.FieldValidPredicate(field=f"s{index}", valid=True))
        .mark_point(filled=True, size=48, opacity=0.85, color=PALETTE[0], tooltip=alt.TooltipContent("data"))
        .encode(x=_x(index, key, [row[f"s{index}"] for row in rows if f"s{index}" in row]),
                y=y_axis("value:Q", values, metric))
        .properties(name=f"slice_{index}", **_PANEL)
        for index, key in enumerate(keys)
        if any(f"s{index}" in row for row in rows)
    ]  # fmt: skip
    if not panels:
        return None
    return dict(alt.concat(*panels, columns=3, data=alt.InlineData(values=rows)).to_dict())


def _x(index: int, key: str, values: Sequence[Any]) -> alt.X:
    if any(isinstance(value, str) for value in values):
        domain = list(dict.fromkeys(map(str, values)))
        return alt.X(f"s{index}:N", title=key, sort=None, scale=alt.Scale(domain=sorted(domain)))
    is_log = min(values) > 0 and max(values) >= 10 * min(values)
    scale = (
        alt.Scale(type="log", nice=False, padding=12)
        if is_log
        else alt.Scale(zero=False, nice=False, padding=12)
    )
    title = f"{key} (log scale)" if is_log else key
    ticks: Spec = (
        {"values": log_ticks(min(values), max(values)), "format": "~g"}
        if is_log
        else {"tickCount": 4}
    )
    return alt.X(f"s{index}:Q", title=title, scale=scale, axis=alt.Axis(**ticks))


def _plotted(value: Any) -> Any:
    is_number = type(value) in (int, float) and math.isfinite(value)
    return value if is_number else shown(value)


def _tip(one: Trial, metric: str) -> Spec:
    settings = [f"{key} {shown(value)}" for key, value in one.settings.items()]
    return {"run": f"trial {one.trial}", "said": [f"{metric} {shown(one.value)}", *settings]}
