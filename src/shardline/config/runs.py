"""The run table: rows, grids and their names."""

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.config.credentials import refuse_credentials
from shardline.config.document import plain
from shardline.config.forms import defaults_of, form_at, keys_of
from shardline.config.settings.run import FixedColumns, RunSettings
from shardline.config.validate import coerce, validate
from shardline.core.errors import ConfigError
from shardline.core.nested import flatten
from shardline.core.suggest import suggest

FIXED_COLUMNS = FixedColumns.__struct_fields__
MAX_NAME = 200  # with identity and ending, a file name may have 255 bytes
_NAME_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as the table asks for it.

    Attributes:
        name: the row's name with the grid's varying keys appended.
        where: file, row and run, as error messages begin.
        settings: the settings that the row sets, by dotted key.
        varied: those of them that vary within the row's grid.
        in_table: False for a run that a scaling study alone asks for.
    """

    name: str
    dataset: str
    model: str
    where: str
    settings: dict[str, Any]
    varied: dict[str, Any]
    in_table: bool = True


def read_rows(path: Path, shown: str | None = None, *, not_secret: Sequence[str] = ()) -> list[Row]:
    """Read and expand a tab-separated run table.

    Args:
        shown: the path as messages name it.
        not_secret: keys whose values only look like credentials.

    Raises:
        ConfigError: the file cannot be read or holds no run, a cell holds a credential, a column is
            unknown, a cell has the wrong form, or two runs have one name.
    """
    shown = str(path) if shown is None else shown
    table = _read_table(path, shown)
    if len(table) < 2:
        raise ConfigError(f"{shown}: holds no run; give a header and one row per run")
    for number, cells in enumerate(table[1:], 1):
        named = dict(zip(table[0], cells, strict=False))
        refuse_credentials(named, f"{shown} row {number}", not_secret)
    _check_header(table[0], shown)
    rows = [
        run for i, cells in enumerate(table[1:], 1) for run in _expand(table[0], cells, shown, i)
    ]
    _check_names(rows)
    return rows


def _read_table(path: Path, shown: str) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, delimiter="\t", strict=True))
    except OSError as error:
        raise ConfigError(f"runs={shown}: cannot be read ({error.strerror}); create it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(
            f"{shown}: not a tab-separated table ({error}); close the quotes in its cells"
        ) from None
    table = [[cell.strip() for cell in line] for line in lines if any(map(str.strip, line))]
    for cell in itertools.chain.from_iterable(table):
        if re.search(r"[\x00-\x1f]", cell):
            raise ConfigError(
                f"{shown}: cell {cell[:40]!r} holds a tab, line break or control character; close its quotes"
            )
    return table


def _check_header(header: list[str], path: str) -> None:
    for column in FIXED_COLUMNS:
        if column not in header:
            hint = " (columns are separated by tabs)" if len(header) == 1 else ""
            raise ConfigError(f'{path}: column "{column}" is missing from the header{hint}; add it')
    for number, column in enumerate(header, 1):
        if not column:
            raise ConfigError(f"{path}: column {number} has no name; name it or drop its tabs")
        if header.count(column) > 1:
            raise ConfigError(f'{path}: column "{column}" stands twice in the header; drop one')
        if column not in FIXED_COLUMNS:
            _check_column(column, path)
        for other in header:
            if other.startswith(f"{column}."):
                raise ConfigError(
                    f'{path}: column "{other}" lies below column "{column}"; drop one'
                )


def _check_column(column: str, path: str) -> None:
    try:
        form = form_at(RunSettings, column)
        if "" in column.split("."):
            raise KeyError(column)
    except KeyError:
        hint = suggest(column, [*flatten(defaults_of(RunSettings)), *FIXED_COLUMNS])
        raise ConfigError(f'{path}: column "{column}" is not a known setting; {hint}') from None
    if form.kinds == ("object",):
        below = keys_of(form.tables[0]) if form.tables else ["hidden"]
        keys = ", ".join(f"{column}.{key}" for key in below)
        raise ConfigError(
            f'{path}: column "{column}" is a group; name one key of it, such as {keys}'
        )


def _expand(header: list[str], cells: list[str], path: str, number: int) -> Iterator[Row]:
    shown = dict(zip(header, cells, strict=False))
    where = f'{path} row {number} (run "{shown.get("name", "")}")'
    if len(cells) > len(header):
        raise ConfigError(
            f"{where}: {len(cells)} cells under {len(header)} columns; drop the surplus tabs"
        )
    fixed = {key: shown.pop(key, "") for key in FIXED_COLUMNS}
    for key, value in fixed.items():
        validate(value, form_at(FixedColumns, key), where=where, key=key)
    choices = {key: _choices(text, key, where) for key, text in shown.items() if text}
    for values in itertools.product(*choices.values()):
        settings = dict(zip(choices, values, strict=True))
        varied = {key: settings[key] for key, choice in choices.items() if len(choice) > 1}
        yield Row(
            name=fixed["name"] + _suffix(varied),
            dataset=fixed["dataset"],
            model=fixed["model"],
            where=where,
            settings=settings,
            varied=varied,
        )


def _choices(text: str, key: str, where: str) -> list[Any]:
    """Return the values of a cell: those of its list, or the one that it is."""
    cell = _cell(text, key, where)
    if isinstance(cell, Mapping):
        raise ConfigError(f"{where}: {key}={text} is a table; use dotted columns, such as {key}.a")
    if cell == []:
        raise ConfigError(f"{where}: {key}=[] is an empty grid; list at least one value")
    form = form_at(RunSettings, key)
    values = [coerce(item, form) for item in (cell if isinstance(cell, list) else [cell])]
    seen = set()
    for value in values:
        validate(value, form, where=where, key=key)
        if (exact := json.dumps(value)) in seen:
            raise ConfigError(f"{where}: {key}={text} lists {exact} twice; drop one")
        seen.add(exact)
    return values


class _CellLoader(yaml.SafeLoader):
    """YAML in which an unquoted word means what it looks like: no octal, no dates, no `no`."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (so declared by PyYAML)


def _construct_scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    return _scalar(node.value) if node.style is None else node.value


_CellLoader.add_constructor("tag:yaml.org,2002:str", _construct_scalar)


def _cell(text: str, key: str, where: str) -> Any:
    if text[0] not in "[{\"'":
        return plain(_scalar(text), where, key)
    try:
        return plain(yaml.load(text, Loader=_CellLoader), where, key)
    except (yaml.YAMLError, ValueError, TypeError):  # such as a table as a key
        raise ConfigError(
            f"{where}: {key}={text} is not valid YAML; write a value or a list such as [a, b]"
        ) from None


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _suffix(varied: Mapping[str, Any]) -> str:
    """Return `_lr=0.1` for a grid over `optim.lr`; the whole key where its end is not unique."""
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
    return value if isinstance(value, str) else json.dumps(value)


def _safe(text: str) -> str:
    return _NAME_UNSAFE.sub("-", text)


def _check_names(rows: list[Row]) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        check_name(row)
        if row.name in seen:
            other = seen[row.name]
            taken = "two of its grid's values" if other.where == row.where else other.where
            raise ConfigError(
                f'{row.where}: the name "{row.name}" is taken by {taken}; rename one of them'
            )
        seen[row.name] = row


def check_name(row: Row) -> None:
    """Refuse a name that no file can have.

    Raises:
        ConfigError: it is too long.
    """
    if len(row.name) > MAX_NAME:
        raise ConfigError(
            f'{row.where}: the name "{row.name[:40]}..." has {len(row.name)} characters, more than '
            f"{MAX_NAME}; shorten it or vary fewer keys"
        )
