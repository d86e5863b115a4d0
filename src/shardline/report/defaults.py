"""Which of a run's settings somebody chose: those that differ from their default."""

from collections.abc import Mapping
from typing import Any

from shardline.config.defaults import default_settings

_ABSENT = object()
# `auto` becomes what the machine has, which is nobody's choice
_RESOLVED = frozenset({"accelerator"})


def changed_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys whose value is not their default, in the order of the settings.

    Args:
        settings: By dotted key. Keys without a default, such as a model's arguments, count.
    """
    known = default_settings()
    return [
        key
        for key, value in settings.items()
        if known.get(key, _ABSENT) != value and key not in _RESOLVED and not _is_empty(value, key)
    ]


def _is_empty(value: Any, key: str) -> bool:
    """Return whether a key without a default has nothing, as a table that is empty."""
    return key not in default_settings() and value in (None, {}, [], "")
