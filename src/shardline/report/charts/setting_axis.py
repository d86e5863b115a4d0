"""Axis of a varied setting: numbers or names, and their scale and ticks."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt

from shardline.report.charts.axes import Spec, log_ticks, round_ticks, short

_BELOW = -0.12  # place of trials without a value of a range
_MAX_TICKS = 7
_TICK_GAP = 0.07  # height of a line of text, as a share of the axis
_UNORDERED = frozenset({"seed", "fold"})  # numbers without an order


@dataclass(frozen=True)
class Axis:
    """Axis with the values of one setting over all trials.

    Attributes:
        key: Dotted key of the setting.
        values: Its values.
        log: Whether the scale is logarithmic, for numbers from a range, of which some trials may have none. If None,
            the values decide.
    """

    key: str
    values: Sequence[Any]
    log: bool | None = None

    @cached_property
    def numbers(self) -> Sequence[Any]:
        """The values; those of a range without trials that have none."""
        return self.values if self.log is None else [v for v in self.values if v is not None]

    @cached_property
    def is_numeric(self) -> bool:
        """Whether all values are numbers with an order."""
        is_number = (type(v) in (int, float) and math.isfinite(v) for v in self.numbers)
        is_ordered = self.key.rsplit(".", 1)[-1] not in _UNORDERED
        return is_ordered and len(self.numbers) > 0 and all(is_number)

    @cached_property
    def is_log(self) -> bool:
        """Whether the scale is logarithmic."""
        if not self.is_numeric or min(self.numbers) <= 0 or self.log is False:
            return False
        return bool(self.log) or max(self.numbers) >= 10 * min(self.numbers)

    @cached_property
    def categories(self) -> list[str]:
        """The different values as text, in order."""
        numbers = [v for v in self.values if type(v) in (int, float)]
        numbers.sort(key=lambda v: (v != v, v))  # NaN alone has no order
        others = sorted({shown(v) for v in self.values if type(v) not in (int, float)})
        return list(dict.fromkeys([*map(shown, numbers), *others]))

    def at(self, value: Any) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if not self.is_numeric:
            return self.categories.index(shown(value)) / max(1, len(self.categories) - 1)
        if value is None:
            return _BELOW
        scale = math.log if self.is_log else float
        low, high = scale(min(self.numbers)), scale(max(self.numbers))
        return (scale(value) - low) / (high - low) if high > low else 0.5

    def plotted(self, value: Any) -> Any:
        """Return a value for the axis of a panel."""
        return value if self.is_numeric else shown(value)

    def ticks(self, index: int) -> list[Spec]:
        """Return the tick labels: all values, or the ends and some between if there are many."""
        if self.log is not None and self.is_numeric:
            none = [{"axis": index, "at": _BELOW, "text": "not set"}] if None in self.values else []
            return none + [
                {"axis": index, "at": short(self.at(v)), "text": shown(v)} for v in self._round()
            ]
        values = sorted(set(self.values)) if self.is_numeric else self.categories
        every = -(-(len(values) - 1) // (_MAX_TICKS - 1)) or 1
        at = self.at if self.is_numeric else lambda v: values.index(v) / max(1, len(values) - 1)
        kept = [values[-1]]
        for value in values[:-1:every]:  # on a logarithmic axis, values may be close together
            if all(abs(at(value) - at(other)) >= _TICK_GAP for other in kept):
                kept.append(value)
        return [{"axis": index, "at": short(at(v)), "text": shown(v)} for v in sorted(kept, key=at)]

    def _round(self) -> Sequence[Any]:
        """Return round numbers between the ends; all numbers if there are few."""
        few = sorted(set(self.numbers))
        low, high = few[0], few[-1]
        if len(few) <= 2:
            return few
        ticks = log_ticks(low, high) if self.is_log else round_ticks(low, high)
        inside = [one for one in ticks if low <= one <= high]
        return inside if len(inside) > 1 else [low, high]


def x_axis(axis: Axis, field: str) -> alt.X:
    """Return the encoding of a horizontal axis with the values of a setting."""
    if not axis.is_numeric:
        labels = alt.Axis(labelAngle=0 if len(axis.categories) <= 4 else -40, labelLimit=90)
        # not `sort`, which would put the user's text into an expression
        scale = alt.Scale(domain=axis.categories)
        return alt.X(f"{field}:N", title=axis.key, sort=None, scale=scale, axis=labels)
    kind: Spec = {"type": "log"} if axis.is_log else {"zero": False}
    scale = alt.Scale(**kind, nice=False, padding=12)
    values = sorted(set(axis.numbers))
    # on a linear axis, Vega rounds numbers with this format to the digits of their distances
    form: Spec = {"format": "~g"} if axis.is_log or max(map(abs, values)) < 1e-3 else {}
    ticks = (
        alt.Axis(values=values, **form)
        if len(values) <= _MAX_TICKS
        else alt.Axis(tickCount=4, **form)
    )
    title = f"{axis.key} (log scale)" if axis.is_log else axis.key
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=ticks)


def shown(value: Any) -> str:
    """Format a setting or a metric for people."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
