"""Domains, ticks and units of numeric axes."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

Spec = dict[str, Any]  # Vega-Lite
_LARGEST = 1e307  # the difference of two such numbers is still finite
# Least span of an axis, as a share of the largest value. On a narrower axis, labels would differ only
# in the sixth digit or later, and Vega rounds the labels of an empty span to whole numbers.
_NARROWEST = 1e-3
TIME_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_LOG_FROM = 50  # ratio of the highest to the lowest value


def is_log(values: Sequence[float]) -> bool:
    """Return whether values span such a factor that a linear axis would hide small values."""
    low, high = min(values), max(values)
    return low > 0 and high / _LOG_FROM > low


def domain_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a linear axis, widened if the values are nearly equal.

    Args:
        values: At least one finite value.
    """
    low, high = _within(min(values)), _within(max(values))
    missing = _NARROWEST * max(abs(low), abs(high)) - (high - low)
    if low == high and not missing > 0:  # zero, or too small to compute a share of it
        return low - 1, high + 1
    pad = max(0.0, missing / 2)
    return low - pad, high + pad


def y_axis(field: str, values: Sequence[float], title: str) -> alt.Y:
    """Return the encoding of a vertical axis, which is logarithmic if `is_log`."""
    if is_log(values):
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(values=log_ticks(min(values), max(values)), format="~g")
        return alt.Y(field, title=f"{title} (log scale)", scale=scale, axis=axis)
    scale = alt.Scale(domain=list(domain_of(values)), nice=True)
    return alt.Y(field, title=title, scale=scale, axis=_linear(values))


def time_unit(longest_s: float) -> str:
    """Return the largest unit of `TIME_UNITS` in which a time is at least 2."""
    fitting = [unit for unit, seconds in TIME_UNITS.items() if longest_s >= 2 * seconds]
    return fitting[-1] if fitting else "s"


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1 and 3 times each power of ten between two ends; fewer ticks for many powers.

    Vega would draw a line at every multiple of every power.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 3)]
    ticks = ticks if len(powers) <= 3 else ticks[:: 2 * (1 + len(powers) // 9)]
    return [tick for tick in ticks if 0 < tick < math.inf]


def round_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between two ends, at most seven."""
    power = 10.0 ** math.floor(math.log10((high - low) / 6))
    step = next(one * power for one in (1, 2, 5, 10) if (high - low) <= 6 * one * power)
    places = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [short(place * step) for place in places]


def short(value: float) -> float:
    """Return a value rounded to five digits and clipped to the range of charts."""
    return float(f"{_within(value):.5g}")


def _within(value: float) -> float:
    return max(-_LARGEST, min(_LARGEST, value))


def _linear(values: Sequence[float]) -> alt.Axis:
    largest = max(map(abs, values))
    is_plain = largest == 0 or 1e-3 <= largest < 1e7
    options: Spec = {} if is_plain else {"format": "~g"}
    return alt.Axis(tickCount=5, **options)
