"""Arrays of the same rows, and the conversion of their rows to a table with a check of each value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources import arrow_columns
from shardline.data.sources.from_files import ids_in_file
from shardline.data.sources.source import UNKNOWN_LABEL, Table

if TYPE_CHECKING:
    from shardline.data.sources.arrays import ArrayFiles


class Array(Protocol):
    """An array in a file: its shape, its type, and slices of its rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    def __getitem__(self, rows: slice) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class ArrayTable:
    """Arrays of the same rows.

    Attributes:
        file: Index in the source's `files`, whose name gives the rows their ids.
        where: Name of the file or folder, for messages.
        arrays: Arrays by name.
    """

    file: int
    where: str
    arrays: Mapping[str, Array]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(next(iter(self.arrays.values())).shape[0])


class Rows:
    """Conversion of consecutive rows to a `Table`."""

    def __init__(self, source: "ArrayFiles", shard: int, table: ArrayTable, rows: slice) -> None:
        self.source, self.shard, self.of, self.rows = source, shard, table, rows
        self.positions = np.arange(rows.start, rows.stop)
        self.is_kept = np.ones(len(self.positions), dtype=bool)

    def table(self) -> Table:
        """Return the usable rows.

        Raises:
            DataError: A row is unusable and `on_bad` is `fail`. Names file, row, array and value.
        """
        source = self.source
        ids, splits = self._ids(), self._splits()
        roles = source.roles(source.tables[0])
        given = {name: self._values(roles[name], column) for name, column in source.columns.items()}
        if source.label:
            given["labels"] = self._labels()
        kept = self.is_kept
        if not kept.all():
            ids, splits = ids[kept], None if splits is None else splits[kept]
            given = {name: values[kept] for name, values in given.items()}
        if splits is None:
            splits = source.splits_of_file(self.of.file, ids)
        if not source.schema.columns:
            features, labels = given["features"], given["labels"]
            return Table(ids=ids, splits=splits, features=features, labels=labels)
        varying = {name: list(given[name]) for name, of in source.columns.items() if of.varies}
        return Table(ids=ids, columns={**given, **varying}, splits=splits)

    def _accept(self, name: str, bad: np.ndarray, values: np.ndarray, expected: str) -> None:
        for row in np.flatnonzero(bad & self.is_kept):
            shown = f"is {str(values[row])[:40]}" if values.ndim == 1 else "has a bad value"
            where = f"{self.of.where}, row {self.positions[row] + 1}"
            self.source.leave_out(self.shard, f"{where}: array {name} {shown}, expected {expected}")
        self.is_kept &= ~bad

    def _values(self, name: str, column: Column) -> np.ndarray:
        values = self.source.values_of(self.of, name, self.rows)
        if column.kind != "array" or column.varies:
            return values.astype(object)
        if values.dtype.kind not in "biuf" or values.shape[1:] != column.shape:
            raise DataError(
                f"{self.of.where}: rows of {name} are {values.dtype}{[*values.shape[1:]]}, expected {column}; correct "
                "its type in source.columns"
            )
        with np.errstate(all="ignore"):  # values out of range are bad
            given = values.astype(column.dtype, copy=False)
        is_float = given.dtype.kind == "f"
        bad = ~np.isfinite(given) if is_float else given != values
        bad = bad.reshape(len(given), -1).any(axis=1)
        self._accept(name, bad, values, f"finite numbers ({column})")
        return given

    def _labels(self) -> np.ndarray:
        source, name = self.source, self.source.label
        is_float = source.task == "regression"
        if not source.has_labels:
            return np.zeros(len(self.positions), np.float32 if is_float else np.int64)
        values = source.labels_of(self.of, self.rows)
        if is_float:
            found, bad = arrow_columns.numbers(_arrow(values), "float32")
            self._accept(name, bad, values, "a finite number (float32)")
            return found
        found, bad = arrow_columns.labels_of(_arrow(values), source.classes)
        known = ", ".join(source.classes[:5]) + (", ..." if len(source.classes) > 5 else "")
        self._accept(name, bad, values, f"{UNKNOWN_LABEL} ({known})")
        return found

    def _ids(self) -> np.ndarray:
        source, name = self.source, self.source.id_column
        if not name:
            return ids_in_file(source.names[self.of.file], self.positions)
        values = source.values_of(self.of, name, self.rows)
        are_numbers = values.dtype.kind in "iu"
        found, bad = arrow_columns.ids_of(_arrow(values), are_numbers=are_numbers)
        self._accept(name, bad, values, "a whole number" if are_numbers else "text")
        return found

    def _splits(self) -> np.ndarray | None:
        name = self.source.splits.get("column")
        if not name:
            return None
        values = self.source.values_of(self.of, name, self.rows)
        found, bad = arrow_columns.splits_of(_arrow(values))
        self._accept(name, bad, values, "train, validation (val, valid, dev) or test")
        return found


def _arrow(values: np.ndarray) -> pa.Array:
    return pa.array(values.tolist() if values.dtype.kind in "OU" else np.ascontiguousarray(values))
