"""Source of Parquet files. Shards are ranges of rows; a job reads only the row groups of its shards."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from shardline.core.errors import DataError
from shardline.data.sources import arrow_columns
from shardline.data.sources.prepared_columns import is_date
from shardline.data.sources.source import shard_slices
from shardline.data.sources.table_columns import Block
from shardline.data.sources.tabular import Tabular

_BLOCK_BYTES = 64 * 2**20  # features of one block
_FIRST_ROWS = 1000


class RowGroups(Tabular):
    """Base class of sources that read row groups of Parquet files."""

    @cached_property
    @abstractmethod
    def fragments(self) -> list[ds.ParquetFileFragment]:
        """Parquet files, in the order of `names`."""

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the first file."""
        return self.types_of(0)

    @cached_property
    def _num_rows(self) -> list[int]:
        return [self._count(file) for file in range(len(self.fragments))]

    def _count(self, file: int) -> int:
        with _reading(self.shown(file)):
            return int(self.fragments[file].count_rows())

    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the rows of a shard, at most a row group and 64 MiB of features at a time."""
        for file, first, last in shard_slices(self._num_rows, shard, self.num_shards):
            self._check_types(file)
            kept = self.kept_rows(file)
            for place, table in self._read(file, first, last):
                block = Block.after(file, place, table, self.shown(file))
                yield block if kept is None else block.only(kept[place : place + table.num_rows])

    def kept_rows(self, file: int) -> np.ndarray | None:
        """Return a mask of the rows of a file that are not deleted [N] bool; None if all are kept."""
        return None

    def stored_name(self, name: str) -> str:
        """Return the name of a column in the Parquet files."""
        return name

    def _stored_types(self, file: int) -> pa.Schema:
        types = self.types_of(file)
        return pa.schema([field.with_name(self.stored_name(field.name)) for field in types])

    def _check_types(self, file: int) -> None:
        found = self.types_of(file)
        for name in self.used:
            if name not in found.names:
                raise DataError(
                    f"{self.shown(file)}: no column {name}, unlike {self.table_name}; write all files with the same "
                    "schema, or make two datasets of them"
                )
            kind, first = found.field(name).type, self.columns.field(name).type
            is_empty = self.plan and pa.types.is_null(kind)
            if name in (*self.features, *self.keys) and not (is_empty or _alike(kind, first)):
                raise DataError(
                    f"{self.shown(file)}: column {name} is of type {kind}, expected {first} as in {self.table_name}; "
                    "write all files with the same schema"
                )
        self.check_types(found, self.shown(file))

    def types_of(self, file: int) -> pa.Schema:
        """Return the columns of a file."""
        with _reading(self.shown(file)):
            return self.fragments[file].physical_schema

    def _read(self, file: int, first: int, last: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield blocks of the rows [first, last) of a file, each with its first row number."""
        step = max(1, _BLOCK_BYTES // self._row_bytes(file))
        for groups, start in self._row_groups(file, first, last, step):
            for place, batch in self._batches(file, groups, start, step):
                low, high = max(first - place, 0), min(last - place, batch.num_rows)
                if low < high:
                    yield place + low, pa.Table.from_batches([batch.slice(low, high - low)])

    def _row_bytes(self, file: int) -> int:
        """Return the approximate size of a row of the file, in bytes."""
        if not (self.named or self.plan):
            return int(self.schema.feature_shape[0]) * 8
        sizes: Iterator[tuple[int, int]] = (
            (group.total_byte_size, group.num_rows) for group in self.fragments[file].row_groups
        )
        return max([1, *(size // max(1, rows) for size, rows in sizes)])

    def _row_groups(
        self, file: int, first: int, last: int, step: int
    ) -> Iterator[tuple[list[int], int]]:
        """Yield lists of the row groups with these rows, small groups together, and the first row number."""
        ends = np.cumsum(
            [0, *(group.num_rows for group in self.fragments[file].row_groups)]
        ).tolist()
        groups: list[int] = []
        for group, (start, end) in enumerate(pairwise(ends)):
            if start < last and end > first:
                groups.append(group)
                if end - ends[groups[0]] >= step:
                    yield groups, ends[groups[0]]
                    groups = []
        if groups:
            yield groups, ends[groups[0]]

    def _batches(
        self, file: int, groups: list[int], place: int, step: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        part = self.fragments[file].subset(row_group_ids=groups)
        with _reading(self.shown(file)):
            for batch in part.to_batches(
                schema=self._stored_types(file),
                columns=[*map(self.stored_name, self.used)],
                batch_size=step,
                batch_readahead=1,
            ):
                yield place, batch.rename_columns(self.used)
                place += batch.num_rows

    def first_texts(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the values of the first rows of text columns."""
        if not names:
            return {}
        with _reading(self.shown(0)):
            stored = [*map(self.stored_name, names)]
            scanner = self.fragments[0].scanner(schema=self._stored_types(0), columns=stored)
            rows = scanner.head(_FIRST_ROWS)
        return {name: rows.column(n).combine_chunks() for n, name in enumerate(names)}

    def first_list_size(self, name: str) -> int:
        """Return the length of the list in the first row."""
        for batch in self.fragments[0].head(1, columns=[self.stored_name(name)]).to_batches():
            if batch.num_rows:
                return len(batch.column(0)[0].as_py() or ())
        return 0


class Parquet(RowGroups):
    """Rows of Parquet files. Every file must have the used columns."""

    @cached_property
    def fragments(self) -> list[ds.ParquetFileFragment]:
        """Listed files."""
        shape = ds.ParquetFileFormat()
        local = pa.fs.LocalFileSystem()
        return [shape.make_fragment(str(path), filesystem=local) for path in self.files]


@contextmanager
def _reading(shown: str) -> Iterator[None]:
    """Raise read errors as `DataError` with the name of the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise _damaged(shown, error) from None


_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


def _damaged(shown: str, error: Exception) -> DataError:
    reason = " ".join(_TERMINAL_CODES.sub("", str(error)).split())
    if "no such file" in reason.lower():
        return DataError(
            f"{shown}: not found, expected every file of the source; restore it, or remove it from the source"
        )
    return DataError(
        f"{shown}: cannot be read as Parquet ({reason[:200]}), expected a complete file; "
        "download it again, or remove it from the source"
    )


def _alike(kind: pa.DataType, other: pa.DataType) -> bool:
    tests = (arrow_columns.is_number, arrow_columns.is_text, arrow_columns.is_list, is_date)
    return kind == other or any(test(kind) and test(other) for test in tests)
