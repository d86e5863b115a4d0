"""The run table: rows, grids and their names."""

import csv
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from shardline.config.settings import KeySchema, Plain, dotted_keys, fill, keys_of, schema_at
from shardline.config.settings.run_settings import FixedColumns, RunSettings
from shardline.config.user_files import plain, refuse_credentials
from shardline.config.validate import Problems, coerce, suggest_setting, validate
from shardline.core.errors import ConfigError

FIXED_COLUMNS = FixedColumns.__struct_fields__
MAX_NAME = 200  # bytes; a file name with identity and suffix has at most 255
_OFF = "#"  # prefix of a line that is ignored
_NAME_UNSAFE = re.compile(r"[^\w.+-]+")
_SPACED = re.compile(r"[^\s\[{]*[^\s:] +")  # not a table, a grid or `script: train.py`
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run in the table.

    Attributes:
        name: Name of the row, with the varied keys of a grid appended.
        dataset: Name of a dataset or mix, or weights by name.
        where: File, row and run, the start of messages.
        settings: Settings of the row by dotted key.
        varied: Settings that vary in the grid of the row, by dotted key.
        in_table: Whether the run is in the table, and not only in a scaling study.
        folds_of: Name without the fold, if the row is a fold of `fold: all`; else empty.
    """

    name: str
    dataset: str | dict[str, float]
    model: str
    where: str
    settings: dict[str, Any]
    varied: dict[str, Any]
    in_table: bool = True
    folds_of: str = ""


def read_rows(path: Path, shown: str | None = None, *, not_secret: Sequence[str] = ()) -> list[Row]:
    """Read and expand a tab-separated run table.

    Args:
        shown: Path in messages.
        not_secret: Keys whose values only look like credentials.

    Raises:
        ConfigError: The file cannot be read or contains no run, a cell contains a credential, a column
            or value is invalid, or two runs have the same name.
    """
    shown = str(path) if shown is None else shown
    table = _read_table(path, shown)
    header = next(iter(table.values()), [])
    lines = dict(list(table.items())[1:])
    if not lines:
        raise ConfigError(f"{shown}: contains no run; add a header and one row per run")
    for number, cells in lines.items():
        named = dict(zip(header, cells, strict=False))
        refuse_credentials(named, f"{shown} line {number}", not_secret)
    problems = Problems()
    _check_header(header, shown, problems)
    problems.refuse()  # each row would repeat them
    rows = [run for i, cells in lines.items() for run in _expand(header, cells, shown, i, problems)]
    check_names(rows, problems)
    problems.refuse()
    return rows


def read_header(path: Path) -> list[str]:
    """Return the columns of a tab-separated run table."""
    return next(iter(_read_table(path, str(path)).values()), [])


def _read_table(path: Path, shown: str) -> dict[int, list[str]]:
    """Return the cells of each line by line number."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            on = ("\n" if line.lstrip().startswith(_OFF) else line for line in file)
            reader = csv.reader(on, delimiter="\t", strict=True)
            lines = dict((reader.line_num, line) for line in reader)  # noqa: C402 (not one key)
    except OSError as error:
        raise ConfigError(
            f"runs={shown}: cannot be read ({error.strerror}); create it: a header and one line per run, with the "
            "columns name, dataset and model, separated by tabs"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(
            f"{shown}: not a tab-separated table ({error}); close the quotes in its cells"
        ) from None
    table = {
        number: [cell.strip() for cell in line]
        for number, line in lines.items()
        if any(map(str.strip, line))
    }
    for cell in itertools.chain.from_iterable(table.values()):
        if re.search(r"[\x00-\x1f]", cell):
            raise ConfigError(
                f"{shown}: cell {cell[:40]!r} contains a tab, line break or control character; close its quotes"
            )
    return table


def _spaced(where: str, cells: list[str], expected: int) -> str:
    count = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
    return (
        f"{where}: {count}, expected {expected}; the line has spaces where tabs belong; type a tab "
        "between the cells"
    )


def _check_header(header: list[str], path: str, problems: Problems) -> None:
    missing = [column for column in FIXED_COLUMNS if column not in header]
    words = " ".join(header).split()
    if missing and len(words) > len(header):
        problems.found.append(_spaced(f"{path} header", header, len(words)))
        return
    hint = " (columns are separated by tabs)" if len(header) == 1 else ""
    problems.found += [
        f'{path}: column "{column}" is missing from the header{hint}; add it' for column in missing
    ]
    if hint and missing:
        del problems.found[1:]  # the other problems follow from this one
        return
    for number, column in enumerate(header, 1):
        if not column:
            text = f"{path}: column {number} has no name; name it or drop its tabs"
            problems.found.append(text)
            continue
        if header.count(column) > 1:
            text = f'{path}: column "{column}" appears twice in the header; drop one'
            problems.found.append(text)
        below = [other for other in header if other.startswith(f"{column}.")]
        problems.found += [
            f'{path}: column "{other}" is a key of column "{column}"; drop one' for other in below
        ]
        is_below = any(column.startswith(f"{other}.") for other in header)
        if column not in FIXED_COLUMNS and not below and not is_below:
            with problems.gather():
                _check_column(column, path)


def _check_column(column: str, path: str) -> None:
    try:
        schema = schema_at(RunSettings, column)
        if "" in column.split("."):
            raise KeyError(column)
    except KeyError:
        group, _, key = column.partition(".")
        hint = (
            f'did you mean "model_args.{key}"?'
            if key and get_close_matches(group, ["model_args"], cutoff=0.75)
            else suggest_setting(column, [*dotted_keys(RunSettings), *FIXED_COLUMNS])
        )
        raise ConfigError(f'{path}: column "{column}" is not a known setting; {hint}') from None
    if schema.is_table:
        free = [{"optim.args": "betas", "schedule.args": "step_size"}.get(column, "hidden")]
        below = keys_of(schema.tables[0]) if schema.tables else free
        keys = ", ".join(f"{column}.{key}" for key in below)
        raise ConfigError(
            f'{path}: column "{column}" is a group; name one key of it, such as {keys}'
        )


def _expand(
    header: list[str], cells: list[str], path: str, number: int, problems: Problems
) -> Iterator[Row]:
    shown = dict(zip(header, cells, strict=False))
    # no name of a row, dataset or class contains a space
    is_spaced = any(_SPACED.match(shown.get(key, "")) for key in FIXED_COLUMNS)
    if len(cells) < len(header) and is_spaced:
        problems.found.append(_spaced(f"{path} line {number}", cells, len(header)))
        return
    shown["name"] = unicodedata.normalize(
        "NFC", shown.get("name", "")
    )  # editors differ in their form
    where = f'{path} line {number} (run "{shown["name"]}")'
    known = len(problems.found)
    if len(cells) > len(header):
        problems.found.append(
            f"{where}: {len(cells)} cells under {len(header)} columns; drop the surplus tabs"
        )
    fixed = {key: shown.pop(key, "") for key in FIXED_COLUMNS}
    choices: dict[str, list[Any]] = {}
    for key, value in fixed.items():
        schema = schema_at(FixedColumns, key)
        with problems.gather():
            if key == "dataset" and value[:1] in ("{", "["):  # no name begins with these
                choices[key] = _choices(value, key, where, schema)
            else:
                validate(value, schema, where=where, key=key)
    for key, text in shown.items():
        with problems.gather():
            choices |= (
                {key: _choices(text, key, where, schema_at(RunSettings, key))} if text else {}
            )
    if len(problems.found) > known:
        return
    for values in itertools.product(*choices.values()):
        settings = dict(zip(choices, values, strict=True))
        varied = {key: settings[key] for key, choice in choices.items() if len(choice) > 1}
        dataset = settings.pop("dataset", fixed["dataset"])
        yield Row(
            name=fixed["name"] + _suffix(varied),
            dataset=dataset,
            model=fixed["model"],
            where=where,
            settings=settings,
            varied=varied,
        )


def _choices(text: str, key: str, where: str, schema: KeySchema) -> list[Any]:
    """Return the values of a cell: the items of a list, or the single value."""
    cell = _cell(text, key, where)
    if (
        isinstance(cell, Mapping) and not schema.kinds
    ):  # below `model_args`, where each key is a column
        raise ConfigError(f"{where}: {key}={text} is a table; use dotted columns, such as {key}.a")
    if cell == []:
        raise ConfigError(f"{where}: {key}=[] is an empty grid; list at least one value")
    is_grid = isinstance(cell, list) and not _is_value(cell, key)
    values = [coerce(item, schema) for item in (cell if is_grid else [cell])]
    seen = set()
    for value in values:
        validate(value, schema, where=where, key=key, in_table=True)
        if (exact := json.dumps(value)) in seen:
            raise ConfigError(f"{where}: {key}={text} lists {exact} twice; drop one")
        seen.add(exact)
    return [fill(value, schema) for value in values]


def _is_value(cell: list[Any], key: str) -> bool:
    """Return whether a list is one value: of runs to combine, such as [run:a, run:b]."""
    return key in ("average", "ensemble") and all(isinstance(item, str) for item in cell)


@cache
def _cell_loader() -> Any:
    """Return a YAML loader that reads unquoted words literally: no octal numbers, no dates, no `no`."""
    import yaml  # 0.015 s that jobs do not need, since they get rows that are read

    class CellLoader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, object] = {}  # noqa: RUF012 (so declared by PyYAML)

    def construct_scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        return _scalar(node.value) if node.style is None else node.value

    CellLoader.add_constructor("tag:yaml.org,2002:str", construct_scalar)
    return CellLoader


def _cell(text: str, key: str, where: str) -> Any:
    if text[0] not in "[{\"'":
        return plain(_scalar(text), where, key)
    import yaml

    try:
        return plain(yaml.load(text, Loader=_cell_loader()), where, key)
    except (yaml.YAMLError, ValueError, TypeError):  # such as a table as a key
        raise ConfigError(
            f"{where}: {key}={text} is not valid YAML; write a value or a list such as [a, b]"
        ) from None


def literal_of(text: str) -> Any:
    """Return the value that a cell without quotes and brackets has: a number, a boolean, null or the text."""
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _suffix(varied: Plain) -> str:
    """Return the suffix of a name, such as `_lr=0.1` for `optim.lr`; ambiguous keys are written in full."""
    last = [key.rpartition(".")[2] for key in varied]
    labels = [
        short if last.count(short) == 1 else key for key, short in zip(varied, last, strict=True)
    ]
    return "".join(
        f"_{_safe(label)}={_safe(_text(value))}"
        for label, value in zip(labels, varied.values(), strict=True)
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(_text, value))
    if isinstance(value, Mapping):
        return "-".join(f"{key}-{_text(one)}" for key, one in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _safe(text: str) -> str:
    return _NAME_UNSAFE.sub("-", text)


def check_names(rows: Sequence[Row], problems: Problems) -> None:
    """Add a problem for each name that is too long, or of two rows."""
    seen: dict[str, Row] = {}
    for row in rows:
        with problems.gather():
            check_name(row)
        if row.name in seen:
            other = seen[row.name]
            taken = "two of its grid's values" if other.where == row.where else other.where
            problems.found.append(
                f'{row.where}: the name "{row.name}" is taken by {taken}; rename one of them'
            )
        seen[row.name] = row


def check_name(row: Row) -> None:
    """Reject a name that is too long for a file.

    Raises:
        ConfigError: The name is too long.
    """
    size = len(row.name.encode())
    if size > MAX_NAME:
        unit = "characters" if row.name.isascii() else "bytes"
        raise ConfigError(
            f'{row.where}: the name "{row.name[:40]}..." has {size} {unit}, more than '
            f"{MAX_NAME}; shorten it or vary fewer keys"
        )
