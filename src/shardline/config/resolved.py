"""Resolved settings as types, and as the plain tables of identity documents, `run.json` and user code."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import to_builtins

from shardline.config.before import with_before
from shardline.config.forms import ANYTHING, Form, keys_of
from shardline.config.settings.base import Settings

_Table = TypeVar("_Table", bound=Settings)


def as_type(settings: Mapping[str, Any], table: type[_Table]) -> _Table:
    """Return resolved settings as their type.

    Args:
        settings: valid ones. An earlier version may have written them, so that newer keys are at
            their `before`, or a later one, whose further keys are passed over.
    """
    return table(**_values(with_before(settings, table), table))


def _values(settings: Mapping[str, Any], table: type[Settings]) -> dict[str, Any]:
    known = keys_of(table)
    return {key: _value(item, known[key].form) for key, item in settings.items() if key in known}


def _value(value: Any, form: Form) -> Any:
    if isinstance(value, list):
        return [_value(item, form.item or ANYTHING) for item in value]
    if not isinstance(value, Mapping):
        return value
    if table := form.table_of(value):
        return table(**_values(value, table))
    return {key: _value(item, form.value or ANYTHING) for key, item in value.items()}


def as_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as nested tables, of their own for each call."""
    plain: dict[str, Any] = to_builtins(settings)
    return plain
