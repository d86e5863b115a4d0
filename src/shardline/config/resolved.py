"""Resolved settings as types, and as the plain tables of identity documents, `run.json` and user code."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import to_builtins

from shardline.config.key_schema import ANYTHING, KeySchema, keys_of, schema_of
from shardline.config.settings.config import DatasetSettings, ReportSettings
from shardline.config.settings.run_settings import Evaluation, RunSettings
from shardline.config.settings.settings_table import Settings
from shardline.config.validate import coerce
from shardline.core.canonical import canonical_json

KEYWORD = "legacy_value"


def settings_of(stage: str) -> type[Settings]:
    """Return the table of the settings in a stage's identity document; without keys where there is none."""
    known: dict[str, type[Settings]] = {
        "dataset": DatasetSettings,
        "train": RunSettings,
        "evaluate": Evaluation,
        "report": ReportSettings,
    }
    return known.get(stage, Settings)


def without_legacy_values(settings: Mapping[str, Any], table: type[Settings]) -> dict[str, Any]:
    """Return settings without those that have the value of their `legacy_value`.

    A table of settings that is empty then goes as well; an entry that a user named does not.

    Args:
        settings: resolved settings.
        table: what describes them.
    """
    return dict(_without(settings, schema_of(table)))


def _without(value: Any, schema: KeySchema) -> Any:
    if isinstance(value, list):
        return [_without(item, schema.item or ANYTHING) for item in value]
    if not isinstance(value, Mapping):
        return value
    table, free = schema.table_of(value), schema.value or ANYTHING
    known = keys_of(table) if table else {}
    kept: dict[str, object] = {}
    for key, item in value.items():
        below = known[key].schema if key in known else free
        if KEYWORD in below.limits and _is_legacy_value(item, below):
            continue
        if isinstance(item, dict | list):  # most are not, and 10,000 runs have 500,000
            left = _without(item, below)
            if left == {} and item != {} and key in known:
                continue
            item = left
        kept[key] = item
    return kept


def with_legacy_values(settings: Mapping[str, Any], table: type[Settings]) -> dict[str, Any]:
    """Return settings that an earlier version resolved, with the newer ones at their `legacy_value`."""
    return _with(settings, schema_of(table))


def _with(settings: Mapping[str, Any], schema: KeySchema) -> dict[str, Any]:
    filled = dict(settings)
    table = schema.table_of(settings)
    for key, known in (keys_of(table) if table else {}).items():
        if key not in filled and KEYWORD in known.schema.limits:
            filled[key] = coerce(known.schema.limits[KEYWORD], known.schema)
        elif known.schema.tables and isinstance(filled.get(key, {}), Mapping):
            below = _with(filled.get(key, {}), known.schema)
            if below or key in filled:
                filled[key] = below
    return filled


def _is_legacy_value(value: Any, schema: KeySchema) -> bool:
    """Return whether a value is the `legacy_value`, both in the one form that the type asks for."""
    # as text, since 1 == True
    return canonical_json(coerce(value, schema)) == canonical_json(
        coerce(schema.limits[KEYWORD], schema)
    )


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
