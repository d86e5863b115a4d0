"""The shards of a sealed dataset: where they are and what they hold."""

import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from stat import S_ISLNK
from typing import Any

import numpy as np

from shardline.config.layout import ResultsLayout
from shardline.core.errors import DataError
from shardline.core.package import making
from shardline.data.pieces import Piece
from shardline.data.raw_files import close, read_exactly, size_of
from shardline.data.shard_format import HEADER_BYTES, SHARD_NAME, Layout, shard_path

# no fault of the file, so that a repair would not help
_LIMITS = {
    errno.ENOMEM: "raise vm.max_map_count or the limit of address space (`ulimit -v`), or lower data.window_bytes",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
}


class ShardMap:
    """The shards of a sealed dataset; a `WindowMap` brings those of a window into memory.

    Args:
        manifest: the sealed manifest.
        folder: folder of the shards in the store.

    Attributes:
        dtype: stored type of the features.
        shape: shape of a row's features.
        row_bytes: size of a row's features.
        largest_bytes: size of the largest file.

    Raises:
        DataError: a shard is missing, is no file of the folder, or has another size than its manifest records.
    """

    def __init__(self, manifest: Mapping[str, Any], folder: Path) -> None:
        self.manifest, self.folder = manifest, folder
        schema, self._records = manifest["schema"], manifest["shards"]
        self.dtype, self.shape = np.dtype(schema["feature_dtype"]), tuple(schema["feature_shape"])
        self.row_bytes: int = self.dtype.itemsize * math.prod(self.shape)
        self._layout = lru_cache(lambda rows: Layout.of(schema, rows))
        per_row = Layout.of(schema, 1).bytes - HEADER_BYTES
        for shard, record in enumerate(self._records):
            is_named = SHARD_NAME.fullmatch(str(record["file"]))
            try:
                status = os.lstat(self._name(shard)) if is_named else None  # a million of them
            except OSError as error:
                raise self.unreadable(shard, error) from None
            if status is None or S_ISLNK(status.st_mode):
                shard_path(folder, record["file"])  # which raises
            size = status.st_size if status else 0
            expected = HEADER_BYTES + sum(record["rows"].values()) * per_row
            self._check_size(shard, size, expected)
        self.largest_bytes = max(record["bytes"] for record in self._records)

    def path(self, shard: int) -> Path:
        """Return the path of a shard's file."""
        return Path(self._name(shard))

    def ids(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the row ids of pieces [n] int64."""
        found = []
        for piece in pieces:
            with self.opened(piece.shard) as file:
                found.append(self.column(file, "ids", piece))
        return np.concatenate(found)

    def column(self, file: int, name: str, piece: Piece) -> np.ndarray:
        """Read a piece's `labels` or `ids` [n] from its shard's file.

        Raises:
            OSError: the file cannot be read.
        """
        start, dtype = self.place(name, piece)
        column = np.empty(piece.last - piece.first, dtype)
        read_exactly(file, column.view(np.uint8), start)
        return column

    def place(self, name: str, piece: Piece) -> tuple[int, np.dtype[Any]]:
        """Return where a column of a piece begins in its shard's file, and its type."""
        layout = self._layout(sum(self._records[piece.shard]["rows"].values()))
        dtype = layout.dtypes[name]
        return layout.offsets[name] + piece.first * dtype.itemsize, dtype

    @contextmanager
    def opened(self, shard: int) -> Iterator[int]:
        """Open a shard's file for as long as the context lasts, and yield its descriptor.

        Raises:
            DataError: the file cannot be opened or used, or has another size than before.
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
        """Return the error of a file that cannot be read, with what to do about it."""
        remedy = _LIMITS.get(error.errno or 0) or rebuild_command(self.manifest)
        return DataError(f"shard {self._name(shard)} cannot be read ({error.strerror}); {remedy}")

    def _name(self, shard: int) -> str:
        return f"{self.folder}/{self._records[shard]['file']}"

    def _check_size(self, shard: int, size: int, expected: int) -> None:
        recorded = self._records[shard]["bytes"]
        if not size == recorded == expected:
            raise DataError(
                f"shard {self._name(shard)} has {size:,} bytes, expected {recorded:,} by its manifest; "
                f"{rebuild_command(self.manifest)}"
            )


def rebuild_command(manifest: Mapping[str, Any]) -> str:
    """Return the remedy for a bad shard: how its dataset is repaired."""
    target = ResultsLayout(root=Path()).manifest(manifest["dataset"])
    return (
        f"run `shardline verify --repair {manifest['dataset']}` and start the pipeline again, or rebuild that part "
        f"alone with `{making(target)}`"
    )
