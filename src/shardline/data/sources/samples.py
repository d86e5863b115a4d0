"""What sources share whose rows are read one by one: values of a sample made to fit the schema's columns."""

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
    """A row as it lies in a file.

    Attributes:
        file: the file's place in the source's `names`.
        position: place of the row in the file, which never changes.
        where: file and row, as messages begin.
        values: by name in the file, not decoded yet.
    """

    file: int
    position: int
    where: str
    values: Mapping[str, Any]


Row = tuple[Sample, dict[str, Any]]  # with its values by column


class Samples(FileSource):
    """Rows that are read one by one.

    Args:
        columns: type of each column by name, as `shardline.data.columns` lists them; left out,
            all that the files hold.
        rename: what columns are called in the files, where not by their name.
        classes: names of the classes of an integer column `labels`.
        num_classes: in place of `classes`.
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
            UnusableError: it is damaged.
        """
        return content

    @cached_property
    @abstractmethod
    def found(self) -> dict[str, str | UnusableError]:
        """Type of each column that the files hold, by its name there; an error of one that cannot be read."""

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns that are kept, in the order of their names.

        Raises:
            DataError: a file lacks one, or has values that cannot be read; names the column.
        """
        names = {in_file: name for name, in_file in self._in_file.items()}
        given = self._given or {names.get(name, name): "" for name in self.found}
        return parse_columns({name: self._type(name, given[name]) for name in sorted(given)})

    def _type(self, name: str, written: str) -> str:
        in_file = self.in_file(name)
        found = next((self.found[one] for one in in_file.split(";") if one in self.found), None)
        if isinstance(found, UnusableError):
            raise DataError(
                f"{self.files[0]}: column {in_file} {found}; name the columns to keep in source.columns"
            )
        if not written.endswith("?") and found is None:
            known = f"known are {', '.join(self.found)}"
            raise DataError(
                f"{self.files[0]}: no column named {in_file}; {did_you_mean(in_file, self.found, otherwise=known)}"
            )
        return written or str(found)

    def in_file(self, name: str) -> str:
        """Return what a column is called in the files."""
        return self._in_file.get(name, name)

    @cached_property
    def schema(self) -> Schema:
        """The kept columns."""
        columns = {name: str(column) for name, column in self.columns.items()}
        return Schema(columns=columns, classes=self.classes)

    @property
    def inferred(self) -> dict[str, Any]:
        """The columns where no setting has them, by the first sample or an index, and those left out."""
        used = {one for name in self.columns for one in self.in_file(name).split(";")}
        left = [name for name in self.found if name not in used]
        found: dict[str, Any] = {} if self._given else {"columns": self.schema.columns}
        return found | ({"columns left out": left} if left else {})

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows, at most 64 MiB at a time; one that cannot be used is left out or refused."""
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
    """Return values of rows as a `Table` takes them."""
    if column.optional or column.kind != "array":
        return values
    if not column.varies:
        return np.stack(values)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return Ragged(values=np.concatenate(values), offsets=offsets)


def fit(value: Any, column: Column) -> Any:
    """Return a value as a row of a column has it.

    Args:
        value: bytes, text, a number or an array; text and lists may stand for numbers.

    Raises:
        UnusableError: the column cannot hold it.
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
    """Return a text from its UTF-8.

    Raises:
        UnusableError: it is none.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnusableError(f"has no UTF-8 at byte {error.start}, expected text") from None


def from_json(content: bytes | str) -> Any:
    """Return the numbers that a text holds.

    Raises:
        UnusableError: it holds none.
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
        raise UnusableError(f"holds {array[~is_good].flat[0]}, expected finite numbers ({column})")
    return narrow


def _unfit(value: Any, column: Column) -> UnusableError:
    kind = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else ""
    return UnusableError(f"is {kind or shorten(value)}, expected {column}")


def shorten(value: Any) -> str:
    """Return a value for a message."""
    text = repr(value[:60] if isinstance(value, bytes | str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def type_of(value: Any) -> str:
    """Return the column type of a first value; one that others may exceed in one dimension varies."""
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, str):
        return "text"
    array = np.asarray(value)
    return typed(array.dtype, array.shape if array.ndim != 1 else None)


def typed(dtype: Any, shape: Sequence[int] | None = ()) -> str:
    """Return the column type of numbers: of a shape, or of any number of them (None)."""
    kind = np.dtype(dtype)
    name = kind.name if kind.name in DTYPES else "int64" if kind.kind in "iu" else "float64"
    if shape is None or 0 in shape:
        return f"{name}[*]"
    return f"{name}[{','.join(map(str, shape))}]" if math.prod(shape) and len(shape) else name
