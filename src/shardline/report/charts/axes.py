"""Axes of numbers: what they span and how they are labelled."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

Spec = dict[str, Any]  # Vega-Lite
_LARGEST = 1e307  # the span between two numbers of this size is still a finite one
# Of the largest value. Labels of a narrower axis would differ in their sixth digit or later, and
# those of a span of zero are rounded to whole numbers by Vega.
_NARROWEST = 1e-3
TIME_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_LOG_FROM = 50  # as a ratio of the highest value to the lowest


def is_log(values: Sequence[float]) -> bool:
    """Return whether values differ by such a factor that a linear axis would hide the small ones."""
    low, high = min(values), max(values)
    return low > 0 and high / _LOG_FROM > low


def domain_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a linear axis: around values that are all alike, else those of the values.

    Args:
        values: At least one; finite.
    """
    low, high = _within(min(values)), _within(max(values))
    missing = _NARROWEST * max(abs(low), abs(high)) - (high - low)
    if low == high and not missing > 0:  # zero, or too small to be a share of
        return low - 1, high + 1
    pad = max(0.0, missing / 2)
    return low - pad, high + pad


def y_axis(field: str, values: Sequence[float], title: str) -> alt.Y:
    """Return the encoding of a vertical axis, logarithmic where `is_log`."""
    if is_log(values):
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(values=log_ticks(min(values), max(values)), format="~g")
        return alt.Y(field, title=f"{title} (log scale)", scale=scale, axis=axis)
    scale = alt.Scale(domain=list(domain_of(values)), nice=True)
    return alt.Y(field, title=title, scale=scale, axis=_linear(values))


def time_unit(longest_s: float) -> str:
    """Return the largest unit, of `TIME_UNITS`, of which a time in seconds has at least two."""
    fitting = [unit for unit, seconds in TIME_UNITS.items() if longest_s >= 2 * seconds]
    return fitting[-1] if fitting else "s"


def log_ticks(low: float, high: float) -> list[float]:
    """Return one and three times each power of ten about two ends, of many powers some alone.

    Vega would rule a line at every multiple of every power.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 3)]
    ticks = ticks if len(powers) <= 3 else ticks[:: 2 * (1 + len(powers) // 9)]
    return [tick for tick in ticks if 0 < tick < math.inf]


def short(value: float) -> float:
    """Return a value as charts hold it: to five digits, within what charts can span."""
    return float(f"{_within(value):.5g}")


def _within(value: float) -> float:
    return max(-_LARGEST, min(_LARGEST, value))


def _linear(values: Sequence[float]) -> alt.Axis:
    largest = max(map(abs, values))
    is_plain = largest == 0 or 1e-3 <= largest < 1e7
    options: Spec = {} if is_plain else {"format": "~g"}
    return alt.Axis(tickCount=5, **options)
