"""Base class of sources that read tables: rows as arrays, with a check of each value."""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from shardline.data.columns import Column
from shardline.data.sources import arrow_columns, prepared_columns, typed
from shardline.data.sources.from_files import GROUP, ids_in_file
from shardline.data.sources.notation import remedy_of
from shardline.data.sources.source import UNKNOWN_LABEL, Table
from shardline.data.sources.table_columns import Block, TableColumns
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    Preprocessing,
)
from shardline_io.column_names import WEIGHT

Found = TypeVar("Found")


class Tabular(TableColumns):
    """Base class of sources that read tables. `TableColumns` describes the arguments."""

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, block by block. Unusable rows are skipped or rejected."""
        self.skipped.pop(shard, None)
        for block in self.blocks(shard):
            table = _Conversion(self, shard, block).table()
            if len(table.ids):
                yield table


class _Conversion:
    """Conversion of one block to a `Table`."""

    def __init__(self, source: TableColumns, shard: int, block: Block) -> None:
        self.source, self.shard, self.block = source, shard, block
        self.is_kept = np.ones(block.rows.num_rows, dtype=bool)

    def table(self) -> Table:
        """Return the usable rows.

        Raises:
            DataError: A row is unusable and `on_bad` is `fail`. Names file, row, column and value.
        """
        source, ids, given = self.source, self._ids(), dict[str, Any]()
        groups, strata, times = self._groups(), self._strata(), self._times()
        if source.named:
            splits = self._splits()
            values = {name: self._typed(name, column) for name, column in source.named.items()}
            values |= {"labels": self._labels()} if source.label else {}
            given = {"columns": values | self._weight()}
        elif source.plan:
            labels, splits = self._labels(), self._splits()
            given = self._prepared(source.plan)
            given["columns"] |= {"labels": labels, **self._weight()}
        else:
            labels, splits = self._labels(), self._splits()
            given = {"features": self._features(), "labels": labels, "columns": self._weight()}
        if not self.is_kept.all():
            return _Conversion(source, self.shard, self.block.only(self.is_kept)).table()
        if splits is None:
            splits = source.splits_of_file(self.block.file, ids if groups is None else groups)
        return Table(ids=ids, splits=splits, groups=groups, strata=strata, times=times, **given)

    def _column(self, name: str) -> pa.Array:
        column = self.block.rows.column(name)
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def _accept(self, name: str, found: tuple[Found, np.ndarray], expected: str) -> Found:
        """Return the values of a column. Rows with bad values are skipped or rejected."""
        values, bad = found
        if not bad.any():
            return values
        for row in np.flatnonzero(bad & self.is_kept):
            value = self._shown(name, int(row))
            where, remedy = self.block.where(int(row)), self._remedy(name, int(row), expected)
            self.source.leave_out(
                self.shard, f"{where}: column {name} {value}, expected {expected}", remedy
            )
        self.is_kept &= ~bad
        return values

    def _shown(self, name: str, row: int) -> str:
        value = self._column(name)[row]
        try:
            # manifests of tables contain this text, so it must not change
            return typed.describe(value.as_py(), with_numbers=bool(self.source.named))
        except UnicodeDecodeError:
            return typed.describe(value.cast(pa.large_binary()).as_py())

    def _remedy(self, name: str, row: int, expected: str) -> str:
        column = self._column(name)
        if (
            "number" not in expected
            or not arrow_columns.is_text(column.type)
            or not column[row].is_valid
        ):
            return ""
        text = column.cast(pa.string())[row].as_py()
        return remedy_of([text], self.source.decimal, name)

    def _numbers(self, name: str) -> pa.Array:
        """Return a column for parsing numbers, as Python writes them."""
        return self.source.plain_numbers(name, self._column(name))

    def _features(self) -> np.ndarray:
        source = self.source
        if source._holds_lists:
            name, (size,) = source.features[0], source.schema.feature_shape
            found = arrow_columns.lists(self._column(name), size, source.dtype)
            return self._accept(name, found, f"{size} finite numbers ({source.dtype})")
        features = np.empty((len(self.is_kept), len(source.features)), dtype=source.dtype)
        for i, name in enumerate(source.features):
            found = arrow_columns.numbers(self._numbers(name), source.dtype)
            features[:, i] = self._accept(name, found, f"a finite number ({source.dtype})")
        return features

    def _prepared(self, plan: Preprocessing) -> dict[str, Any]:
        """Return the stored columns of a preprocessed table, and the texts of its codes."""
        rows, columns, texts = len(self.is_kept), dict[str, Any](), {}
        if plan.numbers:
            kind = prepared_columns.number_type(plan, self.source.dtype)
            numbers = np.zeros((rows, len(plan.numbers)), kind)
            is_gap = np.zeros(numbers.shape, bool)
            for place, one in enumerate(plan.numbers):
                numbers[:, place], is_gap[:, place] = (
                    self._date(one.column, one.part) if one.part else self._number(one.column, kind)
                )
            columns = {NUMBERS: numbers, GAPS: prepared_columns.bits_of(is_gap)}
        if plan.categories:
            columns[CODES] = np.zeros((rows, len(plan.categories)), np.int64)
        for place, category in enumerate(plan.categories):
            found, names, bad = prepared_columns.codes_of(self._column(category.column))
            columns[CODES][:, place] = self._accept(
                category.column, (found, bad), "a whole number or text"
            )
            texts[category.column] = names
        return {"columns": columns, "texts": texts}

    def _number(self, name: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
        values, is_gap, bad = prepared_columns.with_gaps(self._numbers(name), kind)
        return self._accept(name, (values, bad), f"a finite number ({kind})"), is_gap

    def _date(self, name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
        dates, bad = prepared_columns.dates_of(self._column(name))
        expected = "a date such as 2024-01-31 or 2024-01-31 12:00:00"
        values = self._accept(name, (prepared_columns.part_of(dates, part), bad), expected)
        return values, np.asarray(dates.is_null()) & ~bad

    def _labels(self) -> np.ndarray:
        name, classes, task = self.source.label, self.source.classes, self.source.task
        if self.source.lacks_label:
            targets = self.source.schema.targets
            kinds = {"classification": np.int64, "multilabel": np.uint8}
            shape = (len(self.is_kept), *([len(targets)] if targets else []))
            return np.zeros(shape, kinds.get(task, np.float32))
        if task != "classification":
            values = [self._numbers_of_label(name) for name in self.source.labels]
            if self.source.holds_list_label or not self.source.schema.targets:
                return values[0]
            return np.stack(values, axis=1)
        known = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        found = arrow_columns.labels_of(self._column(name), classes)
        return self._accept(name, found, f"{UNKNOWN_LABEL} ({known})")

    def _numbers_of_label(self, name: str) -> np.ndarray:
        """Return a column of numbers or flags [N], or of lists of them [N, T]."""
        is_flag, dtype, column = self.source.task == "multilabel", "float32", self._numbers(name)
        what = "0 or 1" if is_flag else "a finite number (float32)"
        if self.source.holds_list_label:
            size = len(self.source.schema.targets)
            values, bad = arrow_columns.lists(column, size, dtype)
            what = f"{size} values of 0 or 1" if is_flag else f"{size} finite numbers (float32)"
        else:
            values, bad = arrow_columns.numbers(column, dtype)
        if is_flag:
            is_other = (values != 0) & (values != 1)
            bad = bad | (is_other.any(axis=1) if is_other.ndim > 1 else is_other)
            with np.errstate(invalid="ignore"):  # bad rows may contain NaN
                values = values.astype(np.uint8)
        return self._accept(name, (values, bad), what)

    def _weight(self) -> dict[str, np.ndarray]:
        """Return the column of weights; empty if rows have none."""
        name = self.source.weight
        if not name:
            return {}
        if self.source.lacks_weight:
            return {WEIGHT: np.ones(len(self.is_kept), np.float32)}
        values, bad = arrow_columns.numbers(self._numbers(name), "float32")
        found = values, bad | ~(values >= 0)
        return {WEIGHT: self._accept(name, found, "a weight of at least 0 (float32)")}

    def _ids(self) -> np.ndarray:
        source, name = self.source, self.source.id_column
        if not name:
            return ids_in_file(source.names[self.block.file], self.block.positions)
        are_numbers = pa.types.is_integer(source.columns.field(name).type)
        found = arrow_columns.ids_of(self._column(name), are_numbers=are_numbers)
        return self._accept(name, found, "a whole number" if are_numbers else "text")

    def _splits(self) -> np.ndarray | None:
        name = self.source.split_column
        if not name:
            return None
        found = arrow_columns.splits_of(self._column(name))
        return self._accept(name, found, "train, validation (val, valid, dev) or test")

    def _groups(self) -> np.ndarray | None:
        name = self.source.group_column
        if not name:
            return None
        return self._accept(name, arrow_columns.groups_of(self._column(name)), GROUP)

    def _strata(self) -> np.ndarray | None:
        name = self.source.stratify_column
        return arrow_columns.strata_of(self._column(name)) if name else None

    def _times(self) -> np.ndarray | None:
        name = self.source.time_column
        if not name:
            return None
        found = arrow_columns.times_of(self._numbers(name))
        return self._accept(name, found, "a time: a number or a date such as 2024-01-31")

    def _typed(self, name: str, column: Column) -> Any:
        in_file = self.source.in_file(name)
        read = self._numbers if column.kind == "array" else self._column
        found = typed.convert(read(in_file), column, empty_is_missing=self.source.empty_is_missing)
        return self._accept(in_file, found, typed.expected(column))
