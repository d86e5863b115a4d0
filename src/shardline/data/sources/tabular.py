"""What CSV, Parquet and Delta share: from chosen columns to features, labels, ids and splits."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.sources import columns
from shardline.data.sources.base import Schema, Table
from shardline.data.sources.from_files import FileSource, ids_in_file


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows of one file, as they were read.

    Attributes:
        file: the file's place in the source's `names`.
        rows: the used columns [N]; text where numbers are expected if the reader found no numbers.
        positions: places of the rows in the file [N], which never change.
        where: describes the place of row i of the block.
    """

    file: int
    rows: pa.Table
    positions: np.ndarray
    where: Callable[[int], str]


class Tabular(FileSource):
    """Rows of a table.

    Args:
        label: column of the label.
        features: columns of the features in their order, or one column of lists; left
            out, all columns of numbers that are not label, id or split.
        id_column: column of the row's id (whole numbers, or text); left out, a row is
            known by its file's name and its place in it.
        task: `classification` or `regression`.
        classes: the labels' values in label order.
        num_classes: in place of `classes` where labels are 0..num_classes-1.
        dtype: NumPy type of the features, as stored.
    """

    def __init__(
        self, *, label: str, features: Sequence[str] = (), id_column: str | None = None,
        task: Literal["classification", "regression"] = "classification",
        classes: Sequence[str | int] = (), num_classes: int = 0, dtype: str = "float32",
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.label, self.id_column, self.task, self.dtype = label, id_column, task, dtype
        self.classes = tuple(map(str, classes or range(num_classes)))
        self.split_column: str | None = self.splits.get("column")
        self._given = tuple(features)

    @cached_property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """All columns of the table, as its first file has them.

        Raises:
            DataError: the table cannot be read; names the file.
        """

    @abstractmethod
    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the rows of a shard with the used columns, in blocks that fit in memory."""

    @property
    @abstractmethod
    def table_name(self) -> str:
        """What messages about the whole table begin with."""

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features' columns."""
        for name in self.keys:
            self._check_name(name)
        given = self._given or self.numeric_columns()
        for name in given:
            self._check_name(name)
            self.check_feature(name, alone=len(given) == 1)
        if self.id_column and pa.types.is_floating(self.columns.field(self.id_column).type):
            raise DataError(
                f"{self.table_name}: id_column {self.id_column} holds fractions, expected whole numbers or "
                "text; choose another"
            )
        return given

    def _check_name(self, name: str) -> None:
        known = self.columns.names
        if known.count(name) == 1:
            return
        listed = f"known are {', '.join(known[:20])}"
        hint = (
            "rename one of them" if name in known else did_you_mean(name, known, otherwise=listed)
        )
        raise DataError(
            f"{self.table_name}: {known.count(name) or 'no'} columns named {name}; {hint}"
        )

    @property
    def keys(self) -> list[str]:
        """Columns that are no features."""
        return [name for name in (self.label, self.id_column, self.split_column) if name]

    @property
    def used(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.features, *self.keys]))

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers, or of lists, that are no keys.

        Raises:
            DataError: there are none, or a column's values do not tell its type.
        """
        free = [field for field in self.columns if field.name not in self.keys]
        found = [field.name for field in free if columns.is_number(field.type)]
        found = found or [field.name for field in free if columns.is_list(field.type)]
        empty = [field.name for field in free if pa.types.is_null(field.type)]
        if not found or empty:
            what = (
                f"column {empty[0]} begins with empty values" if empty else "no column of numbers"
            )
            raise DataError(
                f"{self.table_name}: {what}, so which columns are features is unknown; "
                "list them in source.features"
            )
        return tuple(found)

    def check_feature(self, name: str, *, alone: bool) -> None:
        """Refuse a column that holds no numbers.

        Raises:
            DataError: names the column and its type.
        """
        kind = self.columns.field(name).type
        is_list = columns.is_list(kind)
        if is_list and not alone:
            raise DataError(
                f"{self.table_name}: column {name} holds lists beside other features; "
                "name it alone in source.features, or leave it out"
            )
        if not columns.is_number(kind.value_type if is_list else kind):
            raise DataError(
                f"{self.table_name}: column {name} is of type {kind}, expected numbers; "
                "drop it from source.features, or convert it"
            )

    @property
    def _holds_lists(self) -> bool:
        return columns.is_list(self.columns.field(self.features[0]).type)

    @cached_property
    def schema(self) -> Schema:
        """A row of as many numbers as there are columns, or as long as a list."""
        size = self._list_size() if self._holds_lists else len(self.features)
        return Schema(
            feature_shape=(size,),
            feature_dtype=self.dtype,
            task=self.task,
            classes=self.classes if self.task == "classification" else (),
        )

    def _list_size(self) -> int:
        kind = self.columns.field(self.features[0]).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        size = self.first_list_size(self.features[0])
        if not size:
            raise DataError(
                f"{self.table_name}: column {self.features[0]} begins with an empty list, "
                "expected as many numbers as a row has features; fix the first row"
            )
        return size

    def first_list_size(self, name: str) -> int:
        """Return the length of a column's first list; 0 where it has none."""
        raise NotImplementedError

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows, block by block; a row that cannot be used is left out or refused."""
        self.skipped.pop(shard, None)
        for block in self.blocks(shard):
            table = _Conversion(self, shard, block).table()
            if len(table.ids):
                yield table


class _Conversion:
    """One block on its way to a table."""

    def __init__(self, source: Tabular, shard: int, block: Block) -> None:
        self.source, self.shard, self.block = source, shard, block
        self.is_kept = np.ones(block.rows.num_rows, dtype=bool)

    def table(self) -> Table:
        ids, labels, splits = self._ids(), self._labels(), self._splits()
        features, kept = self._features(), self.is_kept
        if not kept.all():
            features, ids, labels = features[kept], ids[kept], labels[kept]
            splits = splits[kept] if splits is not None else None
        if splits is None:
            splits = self.source.splits_of_file(self.block.file, ids)
        return Table(ids=ids, features=features, labels=labels, splits=splits)

    def _column(self, name: str) -> pa.Array:
        column = self.block.rows.column(name)
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def _accept(self, name: str, found: columns.Numbers, expected: str) -> np.ndarray:
        """Return a column's values; each bad one is refused or counted by file, row, column and value."""
        values, bad = found
        if not bad.any():
            return values
        for row in np.flatnonzero(bad & self.is_kept):
            value = self._shown(name, int(row))
            where = self.block.where(int(row))
            self.source.leave_out(
                self.shard, f"{where}: column {name} {value}, expected {expected}"
            )
        self.is_kept &= ~bad
        return values

    def _shown(self, name: str, row: int) -> str:
        value = self._column(name)[row].as_py()
        if isinstance(value, list):
            return f"is a list of {len(value)}"
        if value is None or value == "":
            return "is empty"
        text = str(value)
        return f"is {text if len(text) <= 40 else text[:37] + '...'}"

    def _features(self) -> np.ndarray:
        source = self.source
        if source._holds_lists:
            name, (size,) = source.features[0], source.schema.feature_shape
            found = columns.lists(self._column(name), size, source.dtype)
            return self._accept(name, found, f"{size} finite numbers ({source.dtype})")
        features = np.empty((len(self.is_kept), len(source.features)), dtype=source.dtype)
        for i, name in enumerate(source.features):
            found = columns.numbers(self._column(name), source.dtype)
            features[:, i] = self._accept(name, found, f"a finite number ({source.dtype})")
        return features

    def _labels(self) -> np.ndarray:
        name, classes = self.source.label, self.source.classes
        if self.source.task == "regression":
            found = columns.numbers(self._column(name), "float32")
            return self._accept(name, found, "a finite number (float32)")
        known = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        found = columns.labels_of(self._column(name), classes)
        return self._accept(name, found, f"one of source.classes ({known})")

    def _ids(self) -> np.ndarray:
        source, name = self.source, self.source.id_column
        if not name:
            return ids_in_file(source.names[self.block.file], self.block.positions)
        are_numbers = pa.types.is_integer(source.columns.field(name).type)
        found = columns.ids_of(self._column(name), are_numbers=are_numbers)
        return self._accept(name, found, "a whole number" if are_numbers else "text")

    def _splits(self) -> np.ndarray | None:
        name = self.source.split_column
        if not name:
            return None
        found = columns.splits_of(self._column(name))
        return self._accept(name, found, "train, validation (val, valid, dev) or test")
