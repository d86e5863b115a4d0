"""Shards of a sealed dataset: their files and contents."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from stat import S_ISLNK

import numpy as np

from shardline.config.layout import ResultsLayout
from shardline.core.errors import DataError
from shardline.core.package import making
from shardline.data.columns import columns_of, is_plain_table, stored_columns
from shardline.data.raw_files import close, read_exactly, size_of
from shardline.data.shard_format import HEADER_BYTES, SHARD_NAME, ShardLayout, shard_path
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline_io.column_names import IDS, OFFSETS
from shardline_io.order.pieces import Piece, split_pieces
from shardline_io.preprocessing import Preprocessor

# limits of the machine, where repairing the shard would not help
_LIMITS = {
    errno.ENOMEM: "raise vm.max_map_count or the limit of address space (`ulimit -v`), or lower data.window_bytes",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
}


class ShardMap:
    """Shards of a sealed dataset; a `WindowMap` reads the rows of a window into memory.

    Args:
        manifest: the sealed manifest.
        folder: folder of the shards in the store.
        fold: fold that a run tests on, if the dataset has folds.
        is_own: whether the preprocessing was fitted on these shards.

    Attributes:
        columns: columns by name, without the ids, in the order of the file.
        made: columns of the samples, which preprocessing makes of `columns`.
        preprocessor: makes the samples' columns; None if these are the stored ones.
        grid: name of the first column if all its rows have one size, else None.
        row_bytes: size of a row of a table's features; for other columns, the mean size of a whole row.
        largest_bytes: size of the largest file.

    Raises:
        DataError: a shard is missing, is not a file in the folder, or its size differs from the manifest.
    """

    def __init__(
        self, manifest: Manifest, folder: Path, fold: int | None = None, *, is_own: bool = True
    ) -> None:
        self.manifest, self.folder, self.fold = manifest, folder, fold
        schema, self._records = manifest.schema, manifest.shards
        self.columns, self.made = stored_columns(schema), columns_of(schema)
        fitted = manifest.preprocessing
        self.preprocessor = Preprocessor(encode(fitted), is_own=is_own) if fitted else None
        first = next(iter(self.columns))
        is_grid = not (self.columns[first].varies or self.columns[first].optional)
        self.grid = first if is_grid else None
        self._layout: Callable[..., ShardLayout] = lru_cache(
            lambda rows, *values: ShardLayout.of(schema, rows, dict(values))
        )
        self._num_rows = [sum(record.rows.values()) for record in self._records]
        for shard, record in enumerate(self._records):
            is_named = SHARD_NAME.fullmatch(record.file)
            try:
                # no Path objects, since there may be a million shards
                status = os.lstat(self._name(shard)) if is_named else None
            except OSError as error:
                raise self.unreadable(shard, error) from None
            if status is None or S_ISLNK(status.st_mode):
                shard_path(folder, record.file)  # raises the error
            self._check_size(shard, status.st_size if status else 0, self._size(shard))
        self.largest_bytes = max(record.bytes for record in self._records)
        self.row_bytes = self._row_bytes()

    def _size(self, shard: int) -> int:
        """Return the size of a shard's file; for a table quickly, since it may have a million shards."""
        if not is_plain_table(self.manifest.schema):
            return self.layout(shard).bytes
        return HEADER_BYTES + self._num_rows[shard] * self._per_row

    @cached_property
    def _per_row(self) -> int:
        return ShardLayout.of(self.manifest.schema, 1).bytes - HEADER_BYTES

    def _row_bytes(self) -> int:
        if is_plain_table(self.manifest.schema):
            return self.columns["features"].item_bytes
        size: int = sum(record.bytes - HEADER_BYTES for record in self._records)
        return max(1, -(-size // max(1, sum(self._num_rows))))

    def pieces(self, split: str) -> tuple[Piece, ...]:
        """Return the rows of a split in each shard."""
        return split_pieces([record.rows for record in self._records], split, self.fold)

    def layout(self, shard: int) -> ShardLayout:
        """Return the layout of a shard's file."""
        values = self._records[shard].values or {}
        return self._layout(self._num_rows[shard], *values.items())

    def path(self, shard: int) -> Path:
        """Return the path of a shard's file."""
        return Path(self._name(shard))

    def ids(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the row ids of pieces [n] int64."""
        found = []
        for piece in pieces:
            with self.opened(piece.shard) as file:
                found.append(self.read(file, IDS, piece.shard, piece.first, piece.last))
        return np.concatenate(found)

    def lengths(self, name: str, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the number of values of a varying column in each row of pieces [n] int64.

        For the column of the rows' weights, return the weights [n] float64.
        """
        found = []
        for piece in pieces:
            with self.opened(piece.shard) as file:
                if self.columns[name].varies:
                    found.append(np.diff(self.offsets(file, name, piece)))
                else:
                    found.append(self.read(file, name, piece.shard, piece.first, piece.last))
        return np.concatenate(found).astype(np.int64 if self.columns[name].varies else np.float64)

    def offsets(self, file: int, name: str, piece: Piece) -> np.ndarray:
        """Read the offsets [n + 1] int64 of a varying column's rows from a shard's file.

        Raises:
            DataError: the offsets do not rise within the column's values.
            OSError: the file cannot be read.
        """
        found = self.read(file, name + OFFSETS, piece.shard, piece.first, piece.last + 1)
        self.check_offsets(name, piece.shard, found)
        return found

    def check_offsets(self, name: str, shard: int, offsets: np.ndarray) -> None:
        """Check that offsets [n + 1] of a varying column rise within the shard's values.

        Without this check, an altered file could refer to any address in memory.

        Raises:
            DataError: the offsets do not rise within the values.
        """
        total = self.layout(shard).shapes[name][0]
        if offsets[0] < 0 or offsets[-1] > total or (offsets[1:] < offsets[:-1]).any():
            raise self.bad_offsets(name, shard)

    def bad_offsets(self, name: str, shard: int) -> DataError:
        """Return the error of offsets that do not rise within the shard's values."""
        total = self.layout(shard).shapes[name][0]
        return DataError(
            f"shard {self._name(shard)}: the offsets of {name} do not rise from 0 to {total:,}, the number of its "
            f"values; {rebuild_command(self.manifest)}"
        )

    def read(self, file: int, name: str, shard: int, first: int, last: int) -> np.ndarray:
        """Read entries [first, last) of a tensor from its shard's file.

        Raises:
            OSError: the file cannot be read.
        """
        layout = self.layout(shard)
        found = np.empty((last - first, *layout.shapes[name][1:]), layout.dtypes[name])
        size = found.nbytes // max(1, last - first)
        read_exactly(file, found.reshape(-1).view(np.uint8), layout.offsets[name] + first * size)
        return found

    @contextmanager
    def opened(self, shard: int) -> Iterator[int]:
        """Open a shard's file within the context, and yield its descriptor.

        Raises:
            DataError: the file cannot be opened or read, or its size differs from the manifest.
        """
        try:
            file = os.open(self._name(shard), os.O_RDONLY)
            try:
                size = size_of(file)
                self._check_size(shard, size, size)
                yield file
            finally:
                close(file)
        except OSError as error:
            raise self.unreadable(shard, error) from None

    def unreadable(self, shard: int, error: OSError) -> DataError:
        """Return the error of a file that cannot be read, with its remedy."""
        remedy = _LIMITS.get(error.errno or 0) or rebuild_command(self.manifest)
        return DataError(f"shard {self._name(shard)} cannot be read ({error.strerror}); {remedy}")

    def _name(self, shard: int) -> str:
        return f"{self.folder}/{self._records[shard].file}"

    def _check_size(self, shard: int, size: int, expected: int) -> None:
        recorded = self._records[shard].bytes
        if not size == recorded == expected:
            raise DataError(
                f"shard {self._name(shard)} has {size:,} bytes, expected {recorded:,} by its manifest; "
                f"{rebuild_command(self.manifest)}"
            )


def rebuild_command(manifest: Manifest) -> str:
    """Return the remedy for a bad shard: the commands that repair its dataset."""
    target = ResultsLayout(root=Path()).manifest(manifest.dataset)
    return (
        f"run `shardline verify --repair {manifest.dataset}` and start the pipeline again, or rebuild that part "
        f"alone with `{making(target)}`"
    )
