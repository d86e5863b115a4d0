"""Validation of settings by their types, with messages that name key, value and remedy."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardline.config.forms import ANYTHING, Form, defaults_of, keys_of, matches
from shardline.core.errors import ConfigError
from shardline.core.nested import flatten
from shardline.core.suggest import did_you_mean, suggest

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
# What YAML 1.1 takes for text and nobody means so: an exponent with a sign.
_EXPONENT = re.compile(r"[-+]?[0-9]+\.?[0-9]*[eE][-+][0-9]+")
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a table of keys",
    "array": "a list",
    "null": "null",
}
_MOST = 20  # messages at a time


def coerce(value: Any, form: Form) -> Any:
    """Give numbers and truth values the one form that their type asks for.

    YAML 1.1 reads `1e-3` as text and tells 1 from 1.0; where the type wants
    a number both become floats, so that equal settings have equal identities.
    Snakemake passes all values of a profile's or command line's `config` as text.
    """
    if isinstance(value, Mapping):
        return {key: coerce(item, form.key(key, value)) for key, item in value.items()}
    if isinstance(value, list):
        return [coerce(item, form.item or ANYTHING) for item in value]
    if isinstance(value, str) and "boolean" in form.kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and "string" not in form.kinds:
        is_number = not {"number", "integer"}.isdisjoint(form.kinds)
        value = _read_number(value, _NUMBER if is_number else _EXPONENT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if "number" in form.kinds and abs(value) <= sys.float_info.max:
        return float(value) + 0.0  # -0.0 is 0.0
    return int(value) if "integer" in form.kinds and value == value // 1 else value


def _read_number(text: str, form: re.Pattern[str]) -> Any:
    if not form.fullmatch(text) or math.isinf(float(text)):
        return text
    return float(text) if set(text) & set(".eE") else int(text)


def validate(value: Any, form: Form, *, where: str, key: str = "") -> None:
    """Refuse a value that has not the form of its key.

    Args:
        where: file and row, as messages begin.
        key: as the user wrote it.

    Raises:
        ConfigError: names `where`, each key that is wrong, its value and what was expected; an
            unknown key comes with the nearest known one.
    """
    refuse(f"{where}: {problem}" for problem in problems_of(value, form, key))


def refuse(problems: Iterable[str]) -> None:
    """Raise all problems as one error, where there are any.

    Raises:
        ConfigError: a line for each.
    """
    if found := list(problems):
        rest = len(found) - _MOST
        more = [f"and {rest} more like these"] if rest > 0 else []
        raise ConfigError("\n".join([*found[:_MOST], *more]))


def problems_of(value: Any, form: Form, key: str = "") -> Iterator[str]:
    """Yield what is wrong with a value and all below it, in the order in which it is written."""
    if form.choices:
        if value not in form.choices:
            expected = f"one of {', '.join(form.choices)}"
            yield _problem(key, value, expected, bare=True, hint=_nearest(value, form.choices))
    elif form.kinds and not any(_is(value, kind) for kind in form.kinds):
        expected = " or ".join(_WORDS[kind] for kind in form.kinds)
        hint = "; fill it in or drop the line" if value is None else ""
        yield _problem(key, value, expected, hint=hint)
    elif isinstance(value, Mapping):
        yield from _problems_of_table(value, form, key)
    elif isinstance(value, list):
        yield from _problems_of_list(value, form, key)
    else:
        for expected, hint in _beyond(value, form.limits):
            yield _problem(key, value, expected, bare=True, hint=hint)


def _problems_of_table(value: Mapping[str, Any], form: Form, key: str) -> Iterator[str]:
    below = f"{key}." if key else ""
    if not value and form.limits.get("min_length"):
        yield f"{key} is empty; add an entry"
    table = form.table_of(value)
    known = keys_of(table) if table else {}
    told: set[str] = set()
    for name, item in value.items():
        if name in known or table is None or not table.__struct_config__.forbid_unknown_fields:
            if form.name:
                for expected, _ in _beyond(name, form.name.limits):
                    yield f'{below}"{name}": the name is not {expected}; rename it'
            yield from problems_of(item, form.key(name, value), f"{below}{name}")
        else:
            hint = suggest(name, {*known, *table.others}, flatten(defaults_of(table)))
            told.update(missing for missing in known if f'"{missing}"' in hint)
            yield f"{below}{name} is not a known key; {hint}"
    for name, one in known.items():
        if one.is_required and name not in value and name not in told:
            yield f"{below}{name} is missing; add it"


def _problems_of_list(value: list[Any], form: Form, key: str) -> Iterator[str]:
    if len(value) < form.limits.get("min_length", 0):
        yield f"{key}=[] is empty; add an entry"
    exact = [json.dumps(item) for item in value]
    for text in sorted({text for text in exact if exact.count(text) > 1}):
        if form.limits.get("unique"):
            yield f"{key}={_shown(value)} lists {text} twice; drop one"
    for index, item in enumerate(value):
        yield from problems_of(item, form.item or ANYTHING, f"{key}.{index}")


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "object":
            return isinstance(value, Mapping)
        case "null":
            return value is None
    return isinstance(value, str if kind == "string" else list)


def _beyond(value: Any, limits: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was expected of a number or text beyond its limits, and the remedy."""
    if isinstance(value, str):
        if len(value) < limits.get("min_length", 0):
            yield "given; fill it in", ""
        if "pattern" in limits and not matches(limits["pattern"], value):
            yield limits["words"], "; rename it"
        elif len(value) > limits.get("max_length", math.inf):
            yield f"at most {limits['max_length']} characters long", ""
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < limits.get("ge", -math.inf):
            yield f"at least {limits['ge']}", ""
        if value <= limits.get("gt", -math.inf):
            yield f"more than {limits['gt']}", ""
        if value > limits.get("le", math.inf):
            yield f"at most {limits['le']}", ""
        if value >= limits.get("lt", math.inf):
            yield f"less than {limits['lt']}", ""


def _problem(key: str, value: Any, expected: str, *, bare: bool = False, hint: str = "") -> str:
    return f"{key}={_shown(value, bare=bare)} is not {expected}{hint}"


def _shown(value: Any, *, bare: bool = False) -> str:
    if value is None or value == "":
        return "empty"
    # `"true"` and `true` look alike without quotes
    text = value if bare and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(value: Any, choices: tuple[str, ...]) -> str:
    if value is None:
        return "; fill it in or drop the line"
    hint = did_you_mean(str(value), choices, otherwise="")
    return f"; {hint}" if hint else ""
