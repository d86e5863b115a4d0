"""The file of one shard: where its columns lie, how it is written, digested on the way.

A shard is a safetensors file, so any reader of that format maps it: 8 bytes of
header length, a JSON header, then the columns, back to back. The header is padded
with spaces, which the format allows, to `HEADER_BYTES`: the first column then begins
on a page boundary, whatever the page size, and every column's place follows from the
manifest alone.

A fixed column is one tensor [N, *shape]. A varying one is two: `{name}.offsets` [N + 1]
int64, then its values [total, *shape], of which row i has those from offsets[i] to
offsets[i + 1]. An optional column has `{name}.present` [N] bool before both. The row ids
[N] int64 are the last.

Format 1 holds `features` and `labels` alone, and nothing lies between its tensors. In
format 2 each tensor begins at a multiple of 64 bytes, a cache line. safetensors allows no
holes, so what lies between is a tensor too, `padding.{n}` uint8.
"""

import builtins
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from shardline.core.errors import DataError
from shardline.core.files import atomic_writer
from shardline.data.columns import Column, columns_of
from shardline.records.datasets import DatasetSchema, Shard
from shardline_io.column_names import IDS, OFFSETS, PADDING, PRESENT
from shardline_io.shards import NAMES

HEADER_BYTES = 65536  # the largest page size in use (64 KiB, on Arm servers)
FORMAT = 2  # of columns of any kind; a table's shards are of format 1
_ALIGNMENT = 64
_HUGE_PAGE_BYTES = 2 << 20
SHARD_NAME = re.compile(r"shard-([0-9]+)\.safetensors")


def shard_path(folder: Path, name: object) -> Path:
    """Return where a shard that a manifest names lies.

    Args:
        folder: folder of the dataset's shards.
        name: the manifest's `shards[].file`; whoever altered it could name any file.

    Raises:
        DataError: it is no shard's name, or a symbolic link.
    """
    if not SHARD_NAME.fullmatch(str(name)):
        raise DataError(
            f"a manifest's shards[].file={name!r} is not a shard's name, expected one such as "
            f"shard-00000.safetensors in {folder}; bring back the manifest, or `shardline verify --repair` the dataset"
        )
    path = folder / str(name)
    if path.is_symlink():
        raise DataError(
            f"shard {path} is a symbolic link, expected a file; copy the file there, or link the whole store"
        )
    return path


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Where each tensor of a shard lies.

    Attributes:
        columns: the columns, without the ids.
        format: number of the container format.
        offsets: byte offset of each tensor from the start of the file, in the file's order.
        shapes: shape of each tensor.
        dtypes: NumPy type of each tensor.
        bytes: size of the file.
    """

    columns: dict[str, Column]
    format: int
    offsets: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    bytes: int

    @classmethod
    def of(
        cls, schema: DatasetSchema, rows: int, values: Mapping[str, int] | None = None
    ) -> "ShardLayout":
        """Return the layout of a shard.

        Args:
            schema: a manifest's `schema`.
            rows: number of its rows.
            values: of each varying column, how many values its rows have together.

        Raises:
            DataError: the number of a varying column's values is not given.
        """
        columns = columns_of(schema)
        number = FORMAT if schema.columns else 1
        alignment = _ALIGNMENT if number > 1 else 1
        shapes: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, np.dtype[Any]] = {}
        offsets: dict[str, int] = {}
        end = HEADER_BYTES
        for name, dtype, shape in _tensors(columns, rows, values or {}):
            if gap := -end % alignment:
                padding = f"{PADDING}{len(offsets)}"
                offsets[padding], shapes[padding], dtypes[padding] = end, (gap,), np.dtype("uint8")
            offsets[name], shapes[name], dtypes[name] = end + gap, shape, np.dtype(dtype)
            end += gap + math.prod(shape) * dtypes[name].itemsize
        return cls(
            columns=columns, format=number, offsets=offsets, shapes=shapes, dtypes=dtypes, bytes=end
        )

    @classmethod
    def of_shard(cls, schema: DatasetSchema, shard: Shard) -> "ShardLayout":
        """Return the layout of a shard that a manifest lists; raises as `of`."""
        return cls.of(schema, sum(shard.rows.values()), shard.values or None)

    def header(self, shard: int) -> builtins.bytes:
        """Return the file's first `HEADER_BYTES` bytes."""
        tensors = {
            name: {
                "dtype": NAMES[self.dtypes[name].name],
                "shape": list(self.shapes[name]),
                "data_offsets": [start - HEADER_BYTES, start - HEADER_BYTES + self.nbytes(name)],
            }
            for name, start in self.offsets.items()
        }
        metadata = {"shard": str(shard)} | ({"format": str(self.format)} if self.format > 1 else {})
        text = json.dumps({"__metadata__": metadata, **tensors}).encode()
        length = HEADER_BYTES - 8
        if len(text) > length:
            raise DataError(
                f"the names and shapes of {len(self.columns)} columns take {len(text):,} bytes, expected at most "
                f"{length:,} in a shard's header; give the columns shorter names, or put several into one array"
            )
        return length.to_bytes(8, "little") + text.ljust(length)

    def nbytes(self, name: str) -> int:
        """Return the size of a tensor in bytes."""
        return math.prod(self.shapes[name]) * self.dtypes[name].itemsize


def _tensors(
    columns: Mapping[str, Column], rows: int, values: Mapping[str, int]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield name, type and shape of a shard's tensors, in the order of the file."""
    for name, column in columns.items():
        if column.optional:
            yield name + PRESENT, "bool", (rows,)
        if column.varies and name not in values:
            raise DataError(
                f"a manifest records no number of values of {name}={column}, which varies from row to row, in "
                "shards[].values; bring back the manifest, or `shardline verify --repair` the dataset"
            )
        if column.varies:
            yield name + OFFSETS, "int64", (rows + 1,)
        yield name, column.dtype, (values[name] if column.varies else rows, *column.shape)
    yield IDS, "int64", (rows,)


def write_shard(
    path: Path, tensors: Mapping[str, Sequence[np.ndarray]], layout: ShardLayout, *, shard: int
) -> str:
    """Write a shard's file, all or nothing and on disk, and return the BLAKE3 digest of its bytes.

    Args:
        tensors: each of the layout's but the paddings, in contiguous pieces that follow
            one another and together have the layout's shape.

    Raises:
        DataError: it cannot be written; nothing half-written stays.
    """
    digest = blake3()
    contents = [memoryview(layout.header(shard))]
    for name in layout.offsets:
        padding = [np.zeros(layout.shapes[name], np.uint8)] if name.startswith(PADDING) else []
        pieces = padding or tensors[name]
        contents += [piece.reshape(-1).view(np.uint8).data for piece in pieces]
    with atomic_writer(path) as file:
        for page in _pages(contents):
            for part in page:
                digest.update(part)
            file.write(page[0] if len(page) == 1 else b"".join(page))
    return digest.hexdigest()


def _pages(contents: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Cut what follows one another by whole huge pages: the page cache may then hold it by those."""
    page, room = [], _HUGE_PAGE_BYTES
    for content in contents:
        start = 0
        while start < len(content):
            page.append(content[start : start + room])
            start, room = start + len(page[-1]), room - len(page[-1])
            if not room:
                yield page
                page, room = [], _HUGE_PAGE_BYTES
    if page:
        yield page
