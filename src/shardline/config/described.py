"""What the types of settings say of themselves: the text below each key, and a JSON schema."""

import ast
import inspect
from itertools import pairwise
from typing import Any

from msgspec import UNSET, structs

from shardline.config.key_schema import Key, KeySchema, keys_of, schema_of
from shardline.config.settings.base import Settings
from shardline.config.settings.config import Config
from shardline.config.settings.source_base import Source
from shardline.config.settings.sources import OwnSource

_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
    "unique": "uniqueItems",
}


def texts_of(table: type[Settings]) -> dict[str, str]:
    """Return the text below each key of a table, on one line; else the text of its type."""
    known = keys_of(table)
    found = {key: one.schema.description for key, one in known.items()}
    for base in reversed(table.__mro__):
        if issubclass(base, Settings):
            texts = _texts(base)
            found |= {key: texts[one.field] for key, one in known.items() if one.field in texts}
    return found


def _texts(table: type[Settings]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(table)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str() as written)):
                    found[field.target.id] = " ".join(written.split())
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `config.yaml`."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "config.yaml"}
    return {**head, **_of_schema(schema_of(Config))}


def _of_schema(key_schema: KeySchema) -> dict[str, Any]:
    if key_schema.choices:
        others = structs.replace(key_schema, choices=())
        listed = {"enum": list(key_schema.choices)}
        is_text = key_schema.kinds == ("string",)
        return listed if is_text else {"anyOf": [_of_schema(others), listed]}
    schema: dict[str, Any] = {}
    if kinds := key_schema.kinds:
        schema["type"] = kinds[0] if len(kinds) == 1 else list(kinds)
    sized = {"string": "Length", "array": "Items", "object": "Properties"}
    for name, limit in key_schema.limits.items():
        if name in _KEYWORDS:
            schema[_KEYWORDS[name]] = limit
        elif name in ("min_length", "max_length"):
            kind = next(sized[kind] for kind in kinds if kind in sized)
            schema[f"{name[:3]}{kind}"] = limit
    if key_schema.item:
        schema["items"] = _of_schema(key_schema.item)
    if key_schema.name and key_schema.value:
        schema |= {
            "propertyNames": _of_schema(key_schema.name),
            "additionalProperties": _of_schema(key_schema.value),
        }
    tables = [_of_table(table) for table in key_schema.tables if table is not Source]
    if len(tables) > 1:
        return {**schema, "anyOf": tables}
    return {**schema, **tables[0]} if tables else schema


def _of_table(table: type[Settings]) -> dict[str, Any]:
    texts = texts_of(table)
    schema: dict[str, Any] = {
        "description": " ".join(str(table.__doc__).split()),
        "properties": {key: _of_key(one, texts[key]) for key, one in keys_of(table).items()},
        "additionalProperties": not table.__struct_config__.forbid_unknown_fields,
    }
    if issubclass(table, Source):
        is_own = table is OwnSource
        schema["properties"]["type"] |= {"pattern": ":"} if is_own else {"const": table.named}
    if required := [key for key, one in keys_of(table).items() if one.is_required]:
        schema["required"] = required
    return schema


def _of_key(key: Key, text: str) -> dict[str, Any]:
    schema = _of_schema(key.schema)
    if text:
        schema["description"] = text
    if key.default is not UNSET:
        schema["default"] = key.default
    return schema
