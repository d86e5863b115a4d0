"""Validation against `config/schemas/`, with messages that name key, value and remedy."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from shardline.errors import ConfigError

_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_EXPECTED = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a table of keys",
    "array": "a list",
    "null": "null",
}


def schema_dir() -> Path:
    """Return the folder of the schemas: the checkout's, or the installed package's."""
    package = Path(__file__).parents[1]
    checkout = package.parents[1] / "config" / "schemas"
    return checkout if checkout.is_dir() else package / "schemas"


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return one schema (`config`, `settings` or `runs`) as a dictionary."""
    text = (schema_dir() / f"{name}.schema.yaml").read_text()
    return dict(yaml.safe_load(text))


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the sentence part that names the nearest valid name, or all of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f'did you mean "{nearest[0]}"?' if nearest else f"known are {', '.join(known)}"


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that a schema's `default` keywords make."""
    found: dict[str, Any] = {}
    for key, part in schema.get("properties", {}).items():
        if "default" in part:
            found[key] = part["default"]
        elif part.get("properties"):
            found[key] = defaults_of(part)
    return found


def coerce(value: Any, schema: Mapping[str, Any]) -> Any:
    """Give numbers the one form that their schema asks for.

    YAML 1.1 reads `1e-3` as text and tells 1 from 1.0; where the schema wants
    a number both become floats, so that equal settings have equal identities.
    """
    if isinstance(value, Mapping):
        parts = schema.get("properties", {})
        return {key: coerce(item, parts.get(key, {})) for key, item in value.items()}
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str) and {"number", "integer"} & set(types) and _FLOAT.match(value):
        value = float(value)
    if "number" in types and isinstance(value, int | float):
        return float(value)
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@cache
def _validator(schema_name: str, dotted_key: str) -> Draft202012Validator:
    return Draft202012Validator(subschema(schema_name, dotted_key))


def subschema(schema_name: str, dotted_key: str) -> dict[str, Any]:
    """Return the part of a schema that describes a dotted key; `{}` below a free-form key.

    Raises:
        KeyError: the schema knows no such key; holds the unknown part and the known ones.
    """
    schema = load_schema(schema_name)
    for key in dotted_key.split(".") if dotted_key else ():
        if "properties" not in schema and schema.get("type") == "object":
            return {}  # free-form, such as model_args
        known = schema.get("properties", {})
        if key not in known:
            raise KeyError(key, tuple(known))
        schema = known[key]
    return schema


def validate(document: Any, schema_name: str, *, where: str, dotted_key: str = "") -> None:
    """Check a document against a schema, or against the part for one dotted key.

    Raises:
        ConfigError: names `where`, the key as the user wrote it, its value and
            what was expected; an unknown key comes with the nearest known one.
    """
    error = best_match(_validator(schema_name, dotted_key).iter_errors(document))
    if error is not None:
        raise ConfigError(f"{where}: {_explain(error, dotted_key)}")


def _explain(error: ValidationError, prefix: str) -> str:
    path = ".".join([*filter(None, [prefix]), *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = error.schema.get("properties", {})
        unknown = next(key for key in error.instance if key not in known)
        return f"{path + '.' if path else ''}{unknown} is not a known key; {suggest(unknown, known)}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"{path + '.' if path else ''}{missing} is missing; add it"
    return f"{path}={_shown(error.instance)} is not {_expected(error)}"


def _shown(value: Any) -> str:
    text = "empty" if value is None or value == "" else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(error: ValidationError) -> str:
    wanted = error.validator_value
    match error.validator:
        case "type":
            types = [wanted] if isinstance(wanted, str) else wanted
            return " or ".join(_EXPECTED.get(name, name) for name in types)
        case "enum":
            choices = ", ".join(map(str, wanted))
            nearest = difflib.get_close_matches(str(error.instance), map(str, wanted), n=1)
            return f"one of {choices}" + (f'; did you mean "{nearest[0]}"?' if nearest else "")
        case "minimum":
            return f"at least {wanted}"
        case "exclusiveMinimum":
            return f"more than {wanted}"
        case "maximum":
            return f"at most {wanted}"
        case "exclusiveMaximum":
            return f"less than {wanted}"
        case "pattern":
            return f"of the form {wanted} (letters, digits, and . _ + - after the first)"
        case _:
            return f"valid: {error.message}"


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
    """Return nested settings with those of `over` in front of those of `base`."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(known, value) if both else value  # type: ignore[arg-type]
    return merged


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested settings."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        nested = merge(nested, _nest(dotted.split("."), value))
    return nested


def _nest(keys: list[str], value: Any) -> dict[str, Any]:
    return {keys[0]: value if len(keys) == 1 else _nest(keys[1:], value)}
