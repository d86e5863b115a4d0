"""Resolved settings as types, and as the plain tables of identity documents, `run.json` and user code."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import to_builtins

from shardline.config.key_schema import ANYTHING, KeySchema, keys_of
from shardline.config.legacy_values import KEYWORD
from shardline.config.settings.base import Settings
from shardline.config.validate import coerce

_Table = TypeVar("_Table", bound=Settings)


def as_type(settings: Mapping[str, Any], table: type[_Table]) -> _Table:
    """Return resolved settings as their type.

    Args:
        settings: valid ones. An earlier version may have written them, so that newer keys are at
            their `legacy_value`, or a later one, whose further keys are passed over.
    """
    values = {}
    for key, known in keys_of(table).items():
        if key in settings:
            item = settings[key]
            # most are neither, and 10,000 runs have 500,000
            values[known.field] = (
                _value(item, known.schema) if isinstance(item, dict | list) else item
            )
        elif KEYWORD in known.schema.limits:
            values[known.field] = coerce(known.schema.limits[KEYWORD], known.schema)
        elif known.below:
            values[known.field] = as_type({}, known.schema.tables[0])
    return table(**values)


def _value(value: Any, schema: KeySchema) -> Any:
    if isinstance(value, list):
        return [_value(item, schema.item or ANYTHING) for item in value]
    if not isinstance(value, dict):
        return value
    if table := schema.table_of(value):
        return as_type(value, table)
    return {key: _value(item, schema.value or ANYTHING) for key, item in value.items()}


def as_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as nested tables, of their own for each call."""
    plain: dict[str, Any] = to_builtins(settings)
    return plain
