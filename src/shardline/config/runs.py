"""The run table: rows, grids and their names."""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.config import schema
from shardline.errors import ConfigError

FIXED_COLUMNS = ("name", "dataset", "model")
_NAME_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")


class _CellLoader(yaml.SafeLoader):
    """YAML without dates and without `no`/`off` as booleans: a cell means what it looks like."""


_CellLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL)$", "~nN"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _CellLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as the table asks for it.

    Attributes:
        name: the row's name with the grid's varying keys appended.
        where: file, row and run, as error messages begin.
        settings: the settings that the row sets, by dotted key.
        varied: those of them that vary within the row's grid.
    """

    name: str
    dataset: str
    model: str
    where: str
    settings: dict[str, Any]
    varied: dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Read and expand a tab-separated run table.

    Raises:
        ConfigError: the file is missing, empty or ragged, a column is unknown,
            a cell has the wrong form, or two runs have one name.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = [row for row in csv.reader(file, delimiter="\t") if any(map(str.strip, row))]
    except OSError as error:
        raise ConfigError(f"runs={path}: cannot be read ({error.strerror}); create it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    if len(table) < 2:
        raise ConfigError(f"{path}: holds no run; give a header and one row per run")
    header = [column.strip() for column in table[0]]
    _check_header(header, path)
    rows = [run for i, cells in enumerate(table[1:], 1) for run in _expand(header, cells, path, i)]
    _check_unique(rows)
    return rows


def _check_header(header: list[str], path: Path) -> None:
    for column in FIXED_COLUMNS:
        if column not in header:
            hint = " (columns are separated by tabs)" if len(header) == 1 else ""
            raise ConfigError(f'{path}: column "{column}" is missing from the header{hint}; add it')
    for column in header:
        if header.count(column) > 1:
            raise ConfigError(f'{path}: column "{column}" stands twice in the header; drop one')
        if column not in FIXED_COLUMNS:
            _check_column(column, path)


def _check_column(column: str, path: Path) -> None:
    try:
        part = schema.subschema("settings", column)
    except KeyError:
        known = [*schema.flatten(schema.defaults_of(schema.load_schema("settings"))), *FIXED_COLUMNS]
        raise ConfigError(
            f'{path}: column "{column}" is not a known setting; {schema.suggest(column, known)}'
        ) from None
    if part.get("type") == "object":
        keys = ", ".join(f"{column}.{key}" for key in part.get("properties", {"hidden": 0}))
        raise ConfigError(f'{path}: column "{column}" is a group; name one key of it, such as {keys}')


def _expand(header: list[str], cells: list[str], path: Path, number: int) -> Iterator[Row]:
    shown = dict(zip(header, map(str.strip, cells), strict=False))
    where = f'{path} row {number} (run "{shown.get("name", "")}")'
    if len(cells) > len(header):
        raise ConfigError(f"{where}: {len(cells)} cells under {len(header)} columns; drop the surplus tabs")
    fixed = {key: shown.get(key, "") for key in FIXED_COLUMNS}
    for key, value in fixed.items():
        schema.validate(value, "runs", where=where, dotted_key=key)
    values = {key: _cell(text, key, where) for key, text in shown.items() if text and key not in fixed}
    grid = {key: value for key, value in values.items() if isinstance(value, list)}
    for key, value in grid.items():
        if not value:
            raise ConfigError(f"{where}: {key}=[] is an empty grid; list at least one value")
    for choice in itertools.product(*grid.values()):
        varied = {key: _checked(key, v, where) for key, v in zip(grid, choice, strict=True)}
        settings = {key: varied.get(key, value) for key, value in values.items()}
        settings = {key: _checked(key, value, where) for key, value in settings.items()}
        name = fixed["name"] + _suffix(varied)
        yield Row(
            name=name, dataset=fixed["dataset"], model=fixed["model"],
            where=where, settings=settings, varied=varied,
        )  # fmt: skip


def _cell(text: str, key: str, where: str) -> Any:
    if not any(c in text for c in "[]{},:'\"#&*!|>%@`\n") and " " not in text:
        return _scalar(text)
    try:
        value = yaml.load(text, Loader=_CellLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: {key}={text} is not valid YAML; write a value or [a, b]") from None
    if isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key}={text} is a table; use dotted columns, such as {key}.a")
    return value


def _scalar(text: str) -> Any:
    return yaml.load(text, Loader=_CellLoader)  # noqa: S506 (a SafeLoader)


def _checked(key: str, value: Any, where: str) -> Any:
    value = schema.coerce(value, schema.subschema("settings", key))
    schema.validate(value, "settings", where=where, dotted_key=key)
    return value


def _suffix(varied: Mapping[str, Any]) -> str:
    """Return `_lr=0.1` for a grid over `optim.lr`; the whole key where the last part is not unique."""
    last = [key.rpartition(".")[2] for key in varied]
    parts = []
    for key, short in zip(varied, last, strict=True):
        label = short if last.count(short) == 1 else key
        value = _NAME_UNSAFE.sub("-", str(varied[key]).lower() if isinstance(varied[key], bool) else str(varied[key]))
        parts.append(f"_{label}={value}")
    return "".join(parts)


def _check_unique(rows: list[Row]) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        if row.name in seen:
            raise ConfigError(
                f'{row.where}: the name "{row.name}" is taken by {seen[row.name].where}; rename one of them'
            )
        seen[row.name] = row
