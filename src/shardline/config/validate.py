"""Validation of values against the schema of their keys, with suggestions."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shardline.config.settings import ANYTHING, KeySchema, Plain, dotted_keys, keys_of, matches
from shardline.config.settings.config import Config
from shardline.core import trainer_arguments
from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean, suggest

_PLAIN = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_COMMA = r"([-+]?[0-9]*),([0-9]+)([eE][-+]?[0-9]+)?"
_SEVERAL = rf"[\[(]?\s*({_PLAIN}(?:(?:\s*[,;]\s*|\s+){_PLAIN})+)\s*[\])]?"
_RANGE = r"range\(\s*(-?[0-9]{1,6}(?:\s*,\s*-?[0-9]{1,6}){0,2})\s*\)"
_MULTIPLE = r"([-+]?[0-9]+(?:\.[0-9]+)?)\s*([kKMG])"
_GROUPED = r"[-+]?[0-9]{1,3}(?:[ _'’][0-9]{3})+"
_PERCENT = rf"({_PLAIN})\s*%"
_FRACTION = r"([0-9]{1,9})\s*/\s*([1-9][0-9]{0,8})"
_POWER = r"([0-9]{1,4})\s*(?:\*\*|\^)\s*([0-9]{1,2})"
_WHOLE = r"[-+]?(?:0|[1-9][0-9]*)"
_FACTORS = {"k": 1000, "K": 1000, "M": 1_000_000, "G": 1_000_000_000}
_TRUTHS = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
_SHOWN = 8  # numbers of a list

# Names of settings in other programs.
_ALIASES = {
    "batch": "global_batch", "batch_size": "global_batch", "train_batch_size": "global_batch",
    "eval_batch_size": "evaluation.batch", "val_batch_size": "evaluation.batch",
    "learning_rate": "optim.lr", "rate": "optim.lr", "wd": "optim.weight_decay", "optimizer": "optim.name",
    "optimiser": "optim.name", "scheduler": "schedule.name", "lr_scheduler": "schedule.name",
    "warmup": "schedule.warmup_steps", "num_warmup_steps": "schedule.warmup_steps",
    "epochs": "trainer.max_epochs", "num_epochs": "trainer.max_epochs", "num_train_epochs": "trainer.max_epochs",
    "gradient_accumulation_steps": "trainer.accumulate", "max_grad_norm": "trainer.gradient_clip",
    "gpus": "devices", "num_gpus": "devices", "ngpus": "devices", "num_devices": "devices",
    "num_machines": "nodes", "random_seed": "seed",
    "dtype": "precision", "metric": "early_stopping.monitor",
    **trainer_arguments.SETTINGS,
}  # fmt: skip


def suggest_setting(
    name: str, known: Iterable[str], below: Iterable[str] = (), elsewhere: Iterable[str] = ()
) -> str:
    """Return the suggestion of `suggest`, with names of settings in other programs.

    Args:
        elsewhere: Settings of other tables, suggested only for an exact match.
    """
    names = {*known, *below}
    plain = name.lower().replace("-", "_")
    last = plain.rpartition(".")[2]
    of_trainer = plain == f"trainer.{last}" or {"trainer", "max_epochs"} & names
    if of_trainer and (reason := trainer_arguments.REASONS.get(last)):
        return f"there is no setting for it: {reason}"
    alias = _ALIASES.get(last, "")
    here, there = (
        {key.rpartition(".")[2]: key for key in sorted(keys)} for keys in (names, elsewhere)
    )
    around = plain.rpartition(".")[0]  # a table that is a single setting, such as data.pack
    for meant in (around, plain, alias, f"defaults.{alias}", here.get(last), there.get(last)):
        if meant and (meant in names or meant in there.values()):
            return did_you_mean(meant, [meant], otherwise="")
    return suggest(name, known, below)


def number_meant(value: Any, *, whole: bool, grid: str) -> str:
    """Return the remedy for a number in another notation; empty if the meaning is unclear.

    Args:
        whole: Whether the number must be whole.
        grid: End of the sentence on a list of values, if a list makes a grid.
    """
    if isinstance(value, list):
        several = [one for one in value if _is_number(one)]
        return _list(several, grid) if several == value else ""
    if isinstance(value, float):
        lower = int(value // 1)
        return f"write {lower} or {lower + 1}"
    if not isinstance(value, str):
        return ""
    text = value.strip()
    for number in _numbers_meant(text):
        if not whole or float(number).is_integer():
            return f"write {number}"
    if found := re.fullmatch(_RANGE, text):
        try:
            return _list(list(range(*map(int, found[1].split(",")))), grid)
        except ValueError:  # a step of 0
            return ""
    if found := re.fullmatch(_SEVERAL, text):
        several = re.findall(_PLAIN, found[1])
        if not whole or all(re.fullmatch(_WHOLE, one) for one in several):
            return _list([*map(_plain, several)], grid)
    return ""


def _numbers_meant(text: str) -> Iterator[str]:
    if re.fullmatch(_GROUPED, text):
        yield re.sub(r"[^0-9+-]", "", text)
    if found := re.fullmatch(_COMMA, text):
        is_thousands = len(found[2]) == 3 and found[1].lstrip("+-0")
        point = "" if is_thousands else "."
        yield f"{found[1] or '0'}{point}{found[2]}{found[3] or ''}"
    if found := re.fullmatch(_MULTIPLE, text):
        yield f"{float(found[1]) * _FACTORS[found[2]]:.0f}"
    if found := re.fullmatch(_PERCENT, text):
        yield f"{float(found[1]) / 100:g}"
    if found := re.fullmatch(_FRACTION, text):
        yield f"{int(found[1]) / int(found[2]):.6g}"
    if found := re.fullmatch(_POWER, text):
        yield str(int(found[1]) ** int(found[2]))


def _plain(text: str) -> Any:
    return float(text) if set(text) & set(".eE") else int(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(numbers: list[Any], grid: str) -> str:
    if not numbers:
        return ""
    if not grid:
        return f"write one, such as {json.dumps(numbers[0])}"
    shown = [json.dumps(number) for number in numbers]
    if len(shown) > _SHOWN:
        shown = [*shown[:3], "...", shown[-1]]
    return f"write [{', '.join(shown)}] {grid}"


def truth_meant(value: Any) -> str:
    """Return the remedy for another notation of true or false; empty if the meaning is unclear."""
    meant = _TRUTHS.get(str(value).lower())
    return "" if meant is None else f"write {json.dumps(meant)}"


def _quoted(choice: str) -> str:
    """Return a choice, in quotes if it is a mark or empty."""
    return choice if any(map(str.isalnum, choice)) else f'"{choice}"'


def nearest_choice(value: Any, choices: tuple[str, ...]) -> str:
    """Return a suggestion of the choice nearest to a value; empty if none is near."""
    if isinstance(value, bool):
        word = "on" if value else "off"  # YAML reads the word as a boolean without quotes
        return f'write "{word}" in quotes' if word in choices else ""
    return did_you_mean(str(value).lower(), choices, otherwise="")


_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
# YAML 1.1 reads an exponent with a sign as text.
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


def coerce(value: Any, schema: KeySchema) -> Any:
    """Convert numbers and booleans to their type, so that equal settings have equal identities.

    YAML 1.1 reads `1e-3` as text, and distinguishes 1 from 1.0. Snakemake passes all values of
    `config` in a profile or on the command line as text.
    """
    if isinstance(value, Mapping):
        return {key: coerce(item, schema.key(key, value)) for key, item in value.items()}
    if isinstance(value, list):
        return [coerce(item, schema.item or ANYTHING) for item in value]
    if isinstance(value, str) and "boolean" in schema.kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and "string" not in schema.kinds:
        is_number = not {"number", "integer"}.isdisjoint(schema.kinds)
        value = _read_number(value, _NUMBER if is_number else _EXPONENT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if {"number", "integer"} <= set(schema.kinds):
        return value  # a share as a float, or a number of batches
    if "number" in schema.kinds and abs(value) <= sys.float_info.max:
        return float(value) + 0.0  # -0.0 is 0.0
    return int(value) if "integer" in schema.kinds and value == value // 1 else value


def _read_number(text: str, pattern: re.Pattern[str]) -> Any:
    if not pattern.fullmatch(text) or math.isinf(float(text)):
        return text
    return _plain(text)


def validate(
    value: Any, schema: KeySchema, *, where: str, key: str = "", in_table: bool = False
) -> None:
    """Reject a value that does not match the schema of its key.

    Args:
        where: File and row, the start of messages.
        key: Key as the user wrote it.
        in_table: Whether the value is a cell of the run table.

    Raises:
        ConfigError: Keys or values are invalid. The message lists each with its value, what was
            expected, and for an unknown key the nearest known key.
    """
    if found := [*problems_of(value, schema, key, in_table=in_table)]:
        raise _ConfigErrors([f"{where}: {problem}" for problem in dict.fromkeys(found)])


class _ConfigErrors(ConfigError):
    """Several errors; the message contains the first of them."""

    def __init__(self, problems: list[str] | str) -> None:
        problems = (
            [problems] if isinstance(problems, str) else problems
        )  # a text of `type(error)(text)`
        rest = len(problems) - _MOST
        more = [f"and {rest} more like these"] if rest > 0 else []
        super().__init__("\n".join([*problems[:_MOST], *more]))
        self.problems = problems


class Problems:
    """The errors of several checks, raised as one error.

    Attributes:
        found: Message of each error.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Collect an error of the config, so that further errors are found too."""
        try:
            yield
        except ConfigError as error:
            self.found += getattr(error, "problems", [str(error)])

    def refuse(self) -> None:
        """Raise the collected errors, if any.

        Raises:
            ConfigError: Errors were collected; one line for each.
        """
        if found := list(dict.fromkeys(self.found)):
            raise _ConfigErrors(found)


def problems_of(
    value: Any, schema: KeySchema, key: str = "", *, in_table: bool = False
) -> Iterator[str]:
    """Yield the problems of a value and of all values below it, in their order."""
    if isinstance(value, str) and value in schema.choices:
        return
    if schema.choices and schema.kinds == ("string",):
        is_open = isinstance(value, str) and "pattern" in schema.limits
        if not (is_open and matches(value, schema.limits)):
            expected = f"one of {', '.join(map(_quoted, schema.choices))}"
            expected += f" or {schema.limits['words']}" if "words" in schema.limits else ""
            hint = _empty(value, in_table) or nearest_choice(value, schema.choices)
            yield _problem(key, value, expected, bare=True, hint=hint)
    elif schema.kinds and not any(_is(value, kind) for kind in schema.kinds):
        expected = " or ".join([*(_WORDS[kind] for kind in schema.kinds), *schema.choices])
        near = nearest_choice(value, schema.choices) if isinstance(value, str) else ""
        yield _problem(key, value, expected, hint=near or _remedy(value, schema, key, in_table))
    elif isinstance(value, Mapping):
        yield from _problems_of_table(value, schema, key)
    elif isinstance(value, list):
        yield from _problems_of_list(value, schema, key)
    else:
        for expected, hint in _beyond(value, schema.limits):
            yield _problem(key, value, expected, bare=True, hint=hint)


_RUN_TABLE = (
    "add `runs: config/runs.tsv`, and create that file: a header and one line per run, with the columns name, "
    "dataset and model, separated by tabs"
)


def _problems_of_table(value: Plain, schema: KeySchema, key: str) -> Iterator[str]:
    below = f"{key}." if key else ""
    if not value and schema.limits.get("min_length"):
        yield f"{key} is empty; add an entry"
    table = schema.table_of(value)
    known = keys_of(table) if table else {}
    named: set[str] = set()
    for name, item in value.items():
        if name in known or table is None or not table.__struct_config__.forbid_unknown_fields:
            if schema.name:
                for expected, _ in _beyond(name, schema.name.limits):
                    yield f'{below}"{name}": the name is not {expected}; rename it'
            yield from problems_of(item, schema.key(name, value), f"{below}{name}")
        elif name in table.excluded:
            yield f"{below}{name} {table.excluded[name]}"
        else:
            hint = suggest_setting(
                name, {*known, *table.others}, dotted_keys(table), _elsewhere(key)
            )
            named.update(missing for missing in known if f'"{missing}"' in hint)
            yield f"{below}{name} is not a known key; {hint}"
    for name, one in known.items():
        if one.is_required and name not in value and name not in named:
            yield f"{below}{name} is missing; {_RUN_TABLE if f'{below}{name}' == 'runs' else 'add it'}"


def _problems_of_list(value: list[Any], schema: KeySchema, key: str) -> Iterator[str]:
    if len(value) < schema.limits.get("min_length", 0):
        yield f"{key}=[] is empty; add an entry"
    exact = [json.dumps(item) for item in value]
    for text in sorted({text for text in exact if exact.count(text) > 1}):
        if schema.limits.get("unique"):
            yield f"{key}={_shown(value)} lists {text} twice; drop one"
    for index, item in enumerate(value):
        yield from problems_of(item, schema.item or ANYTHING, f"{key}.{index}")


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
    """Yield expectation and remedy of a number or text outside its limits."""
    if isinstance(value, str):
        if len(value) < limits.get("min_length", 0):
            yield "given", "fill it in"
        elif not matches(value, limits):
            yield limits["words"], limits.get("remedy", "rename it")
        elif len(value.encode(errors="surrogatepass")) > limits.get("max_length", math.inf):
            unit = "characters" if value.isascii() else "bytes"
            yield f"at most {limits['max_length']} {unit} long", ""
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < limits.get("ge", -math.inf):
            yield f"at least {limits['ge']}", ""
        if value <= limits.get("gt", -math.inf):
            yield f"more than {limits['gt']}", ""
        if value > limits.get("le", math.inf):
            yield f"at most {limits['le']}", ""
        if value >= limits.get("lt", math.inf):
            yield f"less than {limits['lt']}", ""


def _elsewhere(key: str) -> tuple[str, ...]:
    """Return all keys of the config, to suggest a key of another table."""
    is_named = key.partition(".")[0] in ("datasets", "scaling")  # the user names these
    return () if is_named else dotted_keys(Config)


def _problem(key: str, value: Any, expected: str, *, bare: bool = False, hint: str = "") -> str:
    remedy = f"; {hint}" if hint else ""
    return f"{key}={_shown(value, bare=bare)} is not {expected}{remedy}"


def _shown(value: Any, *, bare: bool = False) -> str:
    if value is None or value == "":
        return "empty"
    # `"true"` and `true` look alike without quotes
    text = value if bare and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _empty(value: Any, in_table: bool) -> str:
    if value is not None and value != "":
        return ""
    return "leave the cell empty for the default" if in_table else "fill it in or drop the line"


def _remedy(value: Any, schema: KeySchema, key: str, in_table: bool) -> str:
    """Return the remedy for a value of another type."""
    if empty := _empty(value, in_table):
        return empty
    kinds = schema.kinds
    if not {"integer", "number"}.isdisjoint(kinds) and "string" not in kinds:
        is_default = key.startswith("defaults.")
        grid = "for a run of each" if in_table else ""
        grid = "in a cell of the run table for a run of each" if is_default else grid
        whole = "number" not in kinds
        if "integer" in kinds and not whole and (":" in str(value) or isinstance(value, Mapping)):
            return "write a number of steps, or a share such as 0.25, since a time depends on the machine"
        return number_meant(value, whole=whole, grid=grid) or _example(schema, whole)
    if "boolean" in kinds:
        return truth_meant(value)
    is_scalar = not isinstance(value, list | Mapping)
    if "string" in kinds:
        return "put it in quotes" if is_scalar else ""
    is_item = isinstance(value, Mapping) and "object" in (schema.item or ANYTHING).kinds
    if "array" not in kinds or not (is_scalar or is_item):
        return ""
    if in_table:  # a list in a cell is a grid
        return "put it in two pairs of square brackets, since one pair makes a run of each value"
    return "put it in square brackets"


def _example(schema: KeySchema, whole: bool) -> str:
    numbers = (1, 2) if whole else (0.1, 0.5)
    fits = (one for one in numbers if not list(_beyond(one, schema.limits)))
    return f"write one, such as {next(fits, 1)}"
