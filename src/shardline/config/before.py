"""Settings that are newer than the results: the schemas' keyword `before`.

`before` is the value that gives what was computed when the setting did not exist. Identity
documents leave such a value out, and readers of an older `run.json` put it in, so that a new
setting makes nothing stale. It is not the `default`, which may change later.
"""

from collections.abc import Mapping
from typing import Any

from shardline.config.schema import coerce, load_schema, parts_of
from shardline.core.canonical import canonical_json

KEYWORD = "before"


def schema_of(stage: str) -> dict[str, Any]:
    """Return the schema of the settings in a stage's identity document; `{}` where there is none."""
    if stage == "dataset":
        return dict(load_schema("config")["properties"]["datasets"]["additionalProperties"])
    if stage == "evaluate":
        return dict(load_schema("settings")["properties"]["evaluation"])
    if stage == "report":
        return {"properties": {"scaling": load_schema("config")["properties"]["scaling"]}}
    return load_schema("settings") if stage == "train" else {}


def without_before(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return settings without those that have the value of their `before`.

    A table of settings that is empty then goes as well; an entry that a user named does not.

    Args:
        value: resolved settings, or one of them.
        schema: what describes them.
    """
    if isinstance(value, list):
        return [without_before(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping):
        return value
    parts, rest = parts_of(schema, value), schema.get("additionalProperties")
    kept: dict[str, Any] = {}
    for key, item in value.items():
        is_nested = isinstance(item, dict | list)  # most are not, and 10,000 runs have 500,000
        if key not in parts:
            below = rest if isinstance(rest, Mapping) else {}
            kept[key] = without_before(item, below) if is_nested else item
        elif not (KEYWORD in parts[key] and _is_before(item, parts[key])):
            left = without_before(item, parts[key]) if is_nested else item
            if left != {} or item == {}:
                kept[key] = left
    return kept


def with_before(settings: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that an earlier version resolved, with the newer ones at their `before`."""
    filled = dict(settings)
    for key, part in parts_of(schema, settings).items():
        if key not in filled and KEYWORD in part:
            filled[key] = coerce(part[KEYWORD], part)
        elif part.get("properties") and isinstance(filled.get(key, {}), Mapping):
            below = with_before(filled.get(key, {}), part)
            if below or key in filled:
                filled[key] = below
    return filled


def _is_before(value: Any, part: Mapping[str, Any]) -> bool:
    """Return whether a value is that of `before`, both in the one form that the schema asks for."""
    # as text, since 1 == True
    return canonical_json(coerce(value, part)) == canonical_json(coerce(part[KEYWORD], part))
