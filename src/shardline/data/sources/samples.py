"""Base class of sources that read samples one by one and convert the values to the schema's columns."""

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.columns import Column, parse_columns
from shardline.data.sources.from_files import FileSource, UnusableError, batches, ids_in_file
from shardline.data.sources.source import Ragged, Schema, Table
from shardline.records.datasets import DTYPES

_TABLE_BYTES = 64 * 2**20
_TABLE_ROWS = 2**16


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A row as stored in a file.

    Attributes:
        file: Index of the file in the source's `names`.
        position: Position of the row in the file. It must never change, since ids depend on it.
        where: File and row, for messages.
        values: Undecoded values, by their name in the file.
    """

    file: int
    position: int
    where: str
    values: Mapping[str, Any]


Row = tuple[Sample, dict[str, Any]]  # a sample and its values by column


class Samples(FileSource):
    """Base class of sources that read samples one by one.

    Args:
        columns: Type of each column by name; `shardline.data.columns` lists the types. Default:
            all columns in the files.
        rename: Names of columns in the files, where these differ from the column's name.
        classes: Class names of an integer column `labels`.
        num_classes: Number of classes, instead of `classes`.
    """

    def __init__(
        self, *, columns: Mapping[str, str] | None = None, rename: Mapping[str, str] | None = None,
        classes: Sequence[str | int] = (), num_classes: int = 0, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self._given, self._in_file = dict(columns or {}), dict(rename or {})
        self.classes = tuple(map(str, classes or range(num_classes)))

    @abstractmethod
    def samples(self, shard: int) -> Iterator[Sample]:
        """Yield the rows of a shard."""

    def decoded(self, in_file: str, content: Any, column: Column) -> Any:
        """Return a value of a sample as bytes, text, numbers or an array.

        Raises:
            UnusableError: The value is damaged.
        """
        return content

    @cached_property
    @abstractmethod
    def found(self) -> dict[str, str | UnusableError]:
        """Type of each column in the files, by its name in the files, or the error if it cannot be read."""

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Columns to keep, sorted by name.

        Raises:
            DataError: A column is missing in a file or cannot be read. The message names it.
        """
        names = {in_file: name for name, in_file in self._in_file.items()}
        given = self._given or {names.get(name, name): "" for name in self.found}
        return parse_columns({name: self._type(name, given[name]) for name in sorted(given)})

    def _type(self, name: str, written: str) -> str:
        in_file = self.in_file(name)
        found = next((self.found[one] for one in in_file.split(";") if one in self.found), None)
        if isinstance(found, UnusableError):
            raise DataError(
                f"{self.files[0]}: column {in_file} {found}; list the columns to keep in source.columns"
            )
        if not written.endswith("?") and found is None:
            known = f"use one of {', '.join(self.found)}"
            raise DataError(
                f"{self.files[0]}: no column named {in_file}; {did_you_mean(in_file, self.found, otherwise=known)}"
            )
        return written or str(found)

    def in_file(self, name: str) -> str:
        """Return the name of a column in the files."""
        return self._in_file.get(name, name)

    @cached_property
    def schema(self) -> Schema:
        """Schema of the kept columns."""
        columns = {name: str(column) for name, column in self.columns.items()}
        return Schema(columns=columns, classes=self.classes)

    @property
    def inferred(self) -> dict[str, Any]:
        """Columns inferred from the first sample or the index, and columns left out."""
        used = {one for name in self.columns for one in self.in_file(name).split(";")}
        left = [name for name in self.found if name not in used]
        found: dict[str, Any] = {} if self._given else {"columns": self.schema.columns}
        return found | ({"columns left out": left} if left else {})

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, at most 64 MiB at a time. Unusable rows are skipped or rejected."""
        self.skipped.pop(shard, None)
        return map(self._table, batches(self._rows(shard), _size, _TABLE_BYTES, _TABLE_ROWS))

    def _rows(self, shard: int) -> Iterator[Row]:
        for sample in self.samples(shard):
            try:
                yield sample, {name: self._value(sample, name) for name in self.columns}
            except UnusableError as error:
                self.leave_out(shard, f"{sample.where}: {error}")

    def _value(self, sample: Sample, name: str) -> Any:
        in_file, column = self.in_file(name), self.columns[name]
        found = next((one for one in in_file.split(";") if one in sample.values), None)
        if found is None:
            if column.optional:
                return None
            raise UnusableError(f"column {in_file} is missing, expected {column}")
        try:
            return fit(self.decoded(found, sample.values[found], column), column)
        except UnusableError as error:
            raise UnusableError(f"column {in_file} {error}") from None

    def _table(self, rows: Sequence[Row]) -> Table:
        ids, splits = [], []
        for file, of_file in groupby(rows, lambda row: row[0].file):
            positions = np.array([sample.position for sample, _ in of_file], dtype=np.int64)
            ids.append(ids_in_file(self.names[file], positions))
            splits.append(self.splits_of_file(file, ids[-1]))
        return Table(
            ids=np.concatenate(ids),
            columns={
                name: _joined(column, [values[name] for _, values in rows])
                for name, column in self.columns.items()
            },
            splits=None if splits[0] is None else np.concatenate([s for s in splits if s is not None]),
        )  # fmt: skip


def _size(row: Row) -> int:
    values = row[1].values()
    return sum(v.nbytes if isinstance(v, np.ndarray) else len(v or ()) for v in values)


def _joined(column: Column, values: list[Any]) -> Any:
    """Return the values of several rows in the form that `Table.columns` expects."""
    if column.optional or column.kind != "array":
        return values
    if not column.varies:
        return np.stack(values)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return Ragged(values=np.concatenate(values), offsets=offsets)


def fit(value: Any, column: Column) -> Any:
    """Convert a value to the type of a column.

    Args:
        value: Bytes, text, a number or an array. Numbers may be given as text or lists.

    Raises:
        UnusableError: The value does not fit the column.
    """
    if column.kind == "bytes":
        if not isinstance(value, bytes):
            raise _unfit(value, column)
        return value
    if column.kind == "text":
        text = text_of(value) if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise _unfit(value, column)
        return text
    return _fit_array(from_json(value) if isinstance(value, bytes | str) else value, column)


def text_of(content: bytes) -> str:
    """Decode UTF-8.

    Raises:
        UnusableError: The content is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnusableError(f"is not UTF-8 at byte {error.start}, expected text") from None


def from_json(content: bytes | str) -> Any:
    """Return the numbers in a JSON text.

    Raises:
        UnusableError: The text is not JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise UnusableError(f"is {shorten(content)}, expected numbers") from None


def _fit_array(value: Any, column: Column) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise UnusableError(f"has rows of different lengths, expected {column}") from None
    if column.varies and not array.size:
        array = np.zeros((0, *column.shape), column.dtype)
    if array.dtype.kind not in "biuf" or array.ndim != len(column.shape) + column.varies:
        raise _unfit(value, column)
    if array.shape[column.varies :] != column.shape:
        raise UnusableError(f"is of shape {list(array.shape)}, expected {column}")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(column.dtype)
        is_good = np.isfinite(narrow) if narrow.dtype.kind == "f" else narrow == array
    if not is_good.all():
        raise UnusableError(f"has {array[~is_good].flat[0]}, expected finite numbers ({column})")
    return narrow


def _unfit(value: Any, column: Column) -> UnusableError:
    kind = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else ""
    return UnusableError(f"is {kind or shorten(value)}, expected {column}")


def shorten(value: Any) -> str:
    """Return a value in a short form, for messages."""
    text = repr(value[:60] if isinstance(value, bytes | str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def type_of(value: Any) -> str:
    """Return the column type of a first value. A one-dimensional array makes a varying column."""
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, str):
        return "text"
    array = np.asarray(value)
    return typed(array.dtype, array.shape if array.ndim != 1 else None)


def typed(dtype: Any, shape: Sequence[int] | None = ()) -> str:
    """Return the column type of numbers of a shape, or of a varying number of numbers (None)."""
    kind = np.dtype(dtype)
    name = kind.name if kind.name in DTYPES else "int64" if kind.kind in "iu" else "float64"
    if shape is None or 0 in shape:
        return f"{name}[*]"
    return f"{name}[{','.join(map(str, shape))}]" if math.prod(shape) and len(shape) else name
