"""Nested settings, and the same with dotted keys."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(settings: Mapping[str, object], *, by_name: bool = False) -> dict[str, object]:
    """Return nested settings as one dictionary with dotted keys; an empty table is a value.

    Args:
        by_name: the keys of each table in the order of their names, not in their own.
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
    """Return nested settings with those of `over` in front of those of `base`.

    No table of the result is shared with either, so that one run's settings
    are never another's.
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
    """Return nested settings with the values of dotted keys in the place of their own.

    A table that is such a value takes the place of another; `merge` would put both together.
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
