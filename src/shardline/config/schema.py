"""Validation against `config/schemas/`, with messages that name key, value and remedy."""

import difflib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from shardline.core.errors import ConfigError
from shardline.core.package import workflow_folder

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
# What YAML 1.1 takes for text and nobody means so: an exponent with a sign.
_EXPONENT = re.compile(r"[-+]?[0-9]+\.?[0-9]*[eE][-+][0-9]+")
_EXPECTED = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a table of keys",
    "array": "a list",
    "null": "null",
}


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return one schema (`config`, `settings` or `runs`) as a dictionary."""
    path = workflow_folder() / "config" / "schemas" / f"{name}.schema.yaml"
    text = path.read_text(encoding="utf-8")
    return dict(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


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


def parts_of(schema: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the schemas of a table's keys, with those that `if`/`then` add for this value."""
    parts = {key: part for key, part in schema.get("properties", {}).items() if part is not True}
    for rule in schema.get("allOf", ()):
        if Draft202012Validator(rule["if"]).is_valid(value):
            parts |= {
                key: part for key, part in rule["then"]["properties"].items() if part is not True
            }
    return parts


def defaults_of(schema: Mapping[str, Any], value: Any = None) -> dict[str, Any]:
    """Return the document that a schema's `default` keywords make.

    Args:
        value: the table that lacks the defaults; decides which `if`/`then` apply.
    """
    found: dict[str, Any] = {}
    for key, part in parts_of(schema, value).items():
        if "default" in part:
            found[key] = part["default"]
        elif part.get("properties"):
            found[key] = defaults_of(part)
    return merge(found, {})


def coerce(value: Any, schema: Mapping[str, Any]) -> Any:
    """Give numbers and truth values the one form that their schema asks for.

    YAML 1.1 reads `1e-3` as text and tells 1 from 1.0; where the schema wants
    a number both become floats, so that equal settings have equal identities.
    Snakemake passes all values of a profile's or command line's `config` as text.
    """
    if isinstance(value, Mapping):
        parts, rest = parts_of(schema, value), schema.get("additionalProperties")
        rest = rest if isinstance(rest, Mapping) else {}
        return {key: coerce(item, parts.get(key, rest)) for key, item in value.items()}
    if isinstance(value, list):
        return [coerce(item, schema.get("items", {})) for item in value]
    types = schema.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    if isinstance(value, str) and "boolean" in types and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and "string" not in types:
        value = _read_number(value, _NUMBER if types & {"number", "integer"} else _EXPONENT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if "number" in types and abs(value) <= sys.float_info.max:
        return float(value) + 0.0  # -0.0 is 0.0
    return int(value) if "integer" in types and value == value // 1 else value


def _read_number(text: str, form: re.Pattern[str]) -> Any:
    if not form.fullmatch(text) or math.isinf(float(text)):
        return text
    return float(text) if set(text) & set(".eE") else int(text)


@cache
def _validator(schema_name: str, dotted_key: str) -> Draft202012Validator:
    return Draft202012Validator(subschema(schema_name, dotted_key))


@cache
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


def validate(
    document: Any, schema_name: str, *, where: str, dotted_key: str = "", prefix: str = ""
) -> None:
    """Check a document against a schema, or against the part for one dotted key.

    Args:
        where: file and row, as messages begin.
        dotted_key: key that the document is the value of.
        prefix: what stands before that key in the file, such as `defaults`.

    Raises:
        ConfigError: names `where`, the key as the user wrote it, its value and
            what was expected; an unknown key comes with the nearest known one.
    """
    error = best_match(_validator(schema_name, dotted_key).iter_errors(document))
    if error is not None:
        raise ConfigError(f"{where}: {_explain(error, [prefix, dotted_key])}")


def _explain(error: ValidationError, prefix: Iterable[str]) -> str:
    path = ".".join(filter(None, [*prefix, *map(str, error.absolute_path)]))
    below = f"{path}." if path else ""
    schema: Any = error.schema
    instance: Any = error.instance
    wanted: Any = error.validator_value
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        unknown = next(key for key in instance if key not in known)
        hint = suggest(unknown, known, flatten(defaults_of(schema)))
        return f"{below}{unknown} is not a known key; {hint}"
    if error.validator == "required":
        missing = next(key for key in wanted if key not in instance)
        return f"{below}{missing} is missing; add it"
    if error.validator == "minProperties":
        return f"{path} is empty; add an entry"
    if "propertyNames" in error.absolute_schema_path:
        return f'{below}"{instance}": the name is not {_expected(str(error.validator), wanted)}; rename it'
    return f"{path}={_shown(instance, error)} is not {_expected(str(error.validator), wanted)}{_hint(error)}"


def _shown(value: Any, error: ValidationError) -> str:
    if value is None or value == "":
        return "empty"
    # `"true"` and `true` look alike without quotes
    bare = isinstance(value, str) and error.validator != "type"
    text = value if bare else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(validator: str, wanted: Any) -> str:
    match validator:
        case "type":
            types = [wanted] if isinstance(wanted, str) else wanted
            return " or ".join(_EXPECTED.get(name, name) for name in types)
        case "enum":
            return f"one of {', '.join(map(str, wanted))}"
        case "minimum":
            return f"at least {wanted}"
        case "exclusiveMinimum":
            return f"more than {wanted}"
        case "maximum":
            return f"at most {wanted}"
        case "exclusiveMaximum":
            return f"less than {wanted}"
        case "minLength":
            return "given; fill it in"
        case "maxLength":
            return f"at most {wanted} characters long"
        case "pattern":
            return "made of letters, digits and . _ + - after a first letter or digit"
        case _:
            return f"what {validator}={wanted} allows"


def _hint(error: ValidationError) -> str:
    if error.validator == "enum":
        choices = map(str, error.schema["enum"])  # type: ignore[index]
        nearest = difflib.get_close_matches(str(error.instance), choices, n=1)
        return f'; did you mean "{nearest[0]}"?' if nearest else ""
    if error.instance is None:
        return "; fill it in or drop the line"
    if error.validator == "pattern":
        return "; rename it"
    return ""


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
