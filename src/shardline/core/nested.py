"""Nested settings, and settings with dotted keys."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(settings: Mapping[str, object], *, by_name: bool = False) -> dict[str, object]:
    """Return nested settings as one dictionary with dotted keys; an empty table is a value.

    Args:
        by_name: sort the keys of each table, instead of keeping their order.
    """
    return dict(_flatten(settings, "", by_name))


def _flatten(
    settings: Mapping[str, object], prefix: str, by_name: bool
) -> Iterator[tuple[str, Any]]:
    for key in sorted(settings) if by_name else settings:
        value = settings[key]
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.", by_name)
        else:
            yield f"{prefix}{key}", value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which values of `over` replace values of `base`.

    The result shares no table with either, so that a change to one run never
    affects another.
    """
    merged: dict[str, Any] = {}
    for key in [*base, *(key for key in over if key not in base)]:
        value = over[key] if key in over else base[key]
        if isinstance(value, Mapping):
            below = base.get(key)
            value = merge(below if isinstance(below, Mapping) else {}, over.get(key, {}))
        merged[key] = value
    return merged


def with_values(base: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which the values of dotted keys replace values of `base`.

    A table among the values replaces another table; `merge` would combine both.
    """
    nested = merge(base, {})
    for dotted, value in flat.items():
        *groups, last = dotted.split(".")
        table = nested
        for group in groups:
            if not isinstance(table.get(group), dict):
                table[group] = {}
            table = table[group]
        table[last] = merge({}, value) if isinstance(value, Mapping) else value
    return nested
