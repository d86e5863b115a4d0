"""Charts of a study: the best value so far, and slices through each varied setting."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import altair as alt

from shardline.records.sweeps import Trial
from shardline.report.charts.axes import TIME_UNITS, Spec, short, time_unit, y_axis
from shardline.report.charts.series import PALETTE
from shardline.report.charts.setting_axis import Axis, shown, x_axis

_PANEL = {"height": 170, "width": 280}
_OTHER_COLOR = "#9aa1ab"
_FAILED_COLOR = "#d4505f"
_RING_COLOR = "#d9730d"
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_TIP = alt.TooltipContent("data")


def best_so_far(trials: Sequence[Trial], metric: str, mode: str) -> Spec | None:
    """Build two panels: each trial's value and the best so far, by number of trials and by training time.

    Crosses at the top are trials without a value.

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
    best = None
    for one, cost in zip(trials, costs, strict=True):
        row = {"trial": one.trial, "cost": short(cost / TIME_UNITS[unit]), **_tip(one, metric)}
        if one.value is None:
            rows.append({**row, "failed": 1})
            continue
        best = one.value if best is None else better(best, one.value)
        rows.append({**row, "value": short(one.value), "best": short(best)})
    if best is None:
        return None
    fields = [("trial", "trial")] + (
        [("cost", f"time of all trainings, {unit}")] if costs[-1] else []
    )
    values = [row["value"] for row in rows if "value" in row]
    panels = [
        _progress(field, title, metric, values, index, has_failed=len(values) < len(rows))
        for index, (field, title) in enumerate(fields)
    ]
    return dict(alt.concat(*panels, columns=2, data=alt.InlineData(values=rows)).to_dict())


def _progress(
    field: str, title: str, metric: str, values: Sequence[float], index: int, *, has_failed: bool
) -> Any:
    axis: Spec = {"format": "d", "tickMinStep": 1} if field == "trial" else {}
    x = alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(nice=True, zero=True),
        axis=alt.Axis(tickCount=5, **axis),
    )
    known = alt.Chart().transform_filter("isValid(datum.value)")
    points = known.mark_point(filled=True, size=30, color=_OTHER_COLOR, tooltip=_TIP).encode(
        x=x, y=y_axis("value:Q", values, metric)
    )
    line = known.mark_line(interpolate="step-after", color=PALETTE[0], strokeWidth=2).encode(
        x=x, y=y_axis("best:Q", values, metric)
    )
    steps = (
        known.transform_filter("datum.value == datum.best")
        .mark_point(filled=True, size=36, color=PALETTE[0], tooltip=_TIP)
        .encode(x=x, y=y_axis("value:Q", values, metric))
    )
    named = {"values": points, "best": line, "steps": steps}
    named |= {"failed": _failed(x)} if has_failed else {}
    layers = [layer.properties(name=f"{name}_{index}") for name, layer in named.items()]
    return alt.layer(*layers).properties(**_PANEL)


def _failed(x: alt.X) -> Any:
    """Return crosses at the top of a panel, for the trials without a value."""
    return (
        alt.Chart()
        .transform_filter("datum.failed == 1")
        .mark_point(shape=_CROSS, size=40, color=_FAILED_COLOR, strokeWidth=1.5, tooltip=_TIP)
        .encode(x=x, y=alt.value(-6))
    )


def slices(
    trials: Sequence[Trial], keys: Sequence[str], metric: str, log: Mapping[str, bool], best: int | None
) -> Spec | None:  # fmt: skip
    """Build a panel per setting: the value of each trial against the setting's value.

    Args:
        keys: Varied settings.
        log: Whether the scale is logarithmic, by key of each setting with a range.
        best: Number of the best trial, which has a ring.

    Returns:
        Vega-Lite specification; None if no trial has a value.
    """
    values = [short(one.value) for one in trials if one.value is not None]
    if not values:
        return None
    axes = [
        Axis(key, [one.settings[key] for one in trials if key in one.settings], log.get(key))
        for key in keys
    ]
    rows = [
        {
            "trial": one.trial,
            **({"failed": 1} if one.value is None else {"value": short(one.value)}),
            **({"ring": 1} if one.trial == best else {}),
            **{
                f"s{index}": axis.plotted(one.settings[axis.key])
                for index, axis in enumerate(axes)
                if axis.key in one.settings
            },
            **_tip(one, metric),
        }
        for one in trials
    ]  # fmt: skip
    panels = [
        _slice(axis, index, values, metric, rows)
        for index, axis in enumerate(axes)
        if any("value" in row and f"s{index}" in row for row in rows)
    ]
    return dict(alt.concat(*panels, columns=3, data=alt.InlineData(values=rows)).to_dict())


def _slice(
    axis: Axis, index: int, values: Sequence[float], metric: str, rows: Sequence[Spec]
) -> Any:
    x, y = x_axis(axis, f"s{index}"), y_axis("value:Q", values, metric)
    here = alt.Chart().transform_filter(f"datum.s{index} != null")
    later = alt.Opacity("trial:Q", scale=alt.Scale(range=[0.25, 1]), legend=None)
    known = here.transform_filter("isValid(datum.value)")
    points = known.mark_point(filled=True, size=44, color=PALETTE[0], tooltip=_TIP).encode(
        x=x, y=y, opacity=later
    )
    ring = (
        known.transform_filter("datum.ring == 1")
        .mark_point(size=130, color=_RING_COLOR, strokeWidth=2)
        .encode(x=x, y=y)
    )
    failed = _failed(x).transform_filter(f"datum.s{index} != null")
    has = {key for row in rows if f"s{index}" in row for key in row}
    named = {"slice": points}
    named |= {"ring": ring} if "ring" in has else {}
    named |= {"failed": failed} if "failed" in has else {}
    layers = [layer.properties(name=f"{name}_{index}") for name, layer in named.items()]
    return alt.layer(*layers).properties(**_PANEL)


def _tip(one: Trial, metric: str) -> Spec:
    settings = [f"{key} {shown(value)}" for key, value in one.settings.items()]
    found = one.failure if one.value is None else f"{metric} {shown(one.value)}"
    return {"run": f"trial {one.trial}", "said": [found[:120], *settings]}
