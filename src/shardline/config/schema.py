"""Nested settings and dotted keys, and the nearest of valid names."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def suggest(name: str, known: Iterable[str], below: Iterable[str] = ()) -> str:
    """Return the sentence part that names the nearest valid name, or all of them.

    A name without its group is found as well: `lr` for `optim.lr`.

    Args:
        known: the valid names.
        below: names that are valid too, but too many to be told.
    """
    known = sorted(known)
    names = sorted({*known, *below}, reverse=True)
    by_last = {key.rpartition(".")[2]: key for key in names}
    nearest = difflib.get_close_matches(name, names, n=1)
    if not nearest:
        nearest = [by_last[last] for last in difflib.get_close_matches(name, by_last, n=1)]
    return f'did you mean "{nearest[0]}"?' if nearest else f"known are {', '.join(known)}"


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings as one dictionary with dotted keys."""
    return dict(_flatten(settings, ""))


def _flatten(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested settings."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        *groups, last = dotted.split(".")
        table = nested
        for group in groups:
            table = table.setdefault(group, {})
        table[last] = value
    return nested
