"""File format of shards: the layout of columns, and writing with a checksum.

A shard is a safetensors file, so any reader of that format can map it: 8 bytes of header length, a
JSON header, then the columns. The header is padded to `HEADER_BYTES` with spaces, which the format
allows. So the first column begins on a page boundary for any page size, and the manifest alone
determines the position of every column.

A fixed column is one tensor [N, *shape]. A varying column is two tensors: `{name}.offsets` [N + 1]
int64, then its values [total, *shape], where row i has values [offsets[i], offsets[i + 1]). An
optional column also has `{name}.present` [N] bool before these. The row ids [N] int64 are last.

Format 1 has only `features` and `labels`, without gaps. In format 2 each tensor begins at a multiple
of 64 bytes, a cache line. safetensors allows no gaps, so tensors `padding.{n}` uint8 fill them.
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
from shardline.data.columns import Column, is_plain_table, stored_columns
from shardline.records.datasets import DatasetSchema, Shard
from shardline_io.column_names import IDS, OFFSETS, PADDING, PRESENT
from shardline_io.shards import NAMES

HEADER_BYTES = 65536  # the largest page size in use (64 KiB, on Arm servers)
FORMAT = 2  # for columns of any kind; shards of a table have format 1
_ALIGNMENT = 64
_HUGE_PAGE_BYTES = 2 << 20
SHARD_NAME = re.compile(r"shard-([0-9]+)\.safetensors")


def shard_path(folder: Path, name: object) -> Path:
    """Return the path of a shard that a manifest names.

    Args:
        folder: folder of the dataset's shards.
        name: the manifest's `shards[].file`; in an altered manifest it could name any file.

    Raises:
        DataError: the name is not a shard's name, or the file is a symbolic link.
    """
    if not SHARD_NAME.fullmatch(str(name)):
        raise DataError(
            f"a manifest's shards[].file={name!r} is not a shard's name, expected a name such as "
            f"shard-00000.safetensors in {folder}; restore the manifest, or run `shardline verify --repair` for the "
            "dataset"
        )
    path = folder / str(name)
    if path.is_symlink():
        raise DataError(
            f"shard {path} is a symbolic link, expected a file; copy the file to this path, or link the whole store"
        )
    return path


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Layout of the tensors in a shard's file.

    Attributes:
        columns: columns by name, without the ids.
        format: number of the shard format.
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
            rows: number of rows in the shard.
            values: total number of values in each varying column.

        Raises:
            DataError: `values` lacks a varying column.
        """
        columns = stored_columns(schema)
        number = 1 if is_plain_table(schema) else FORMAT
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
        """Return the layout of a shard in a manifest, like `of`."""
        return cls.of(schema, sum(shard.rows.values()), shard.values or None)

    def header(self, shard: int) -> builtins.bytes:
        """Return the first `HEADER_BYTES` bytes of the file."""
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
                f"{length:,} in a shard's header; shorten the names, or combine several columns into one array"
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
                f"a manifest's shards[].values lacks {name}={column}, expected its number of values since it varies; "
                "restore the manifest, or run `shardline verify --repair` for the dataset"
            )
        if column.varies:
            yield name + OFFSETS, "int64", (rows + 1,)
        yield name, column.dtype, (values[name] if column.varies else rows, *column.shape)
    yield IDS, "int64", (rows,)


def write_shard(
    path: Path, tensors: Mapping[str, Sequence[np.ndarray]], layout: ShardLayout, *, shard: int
) -> str:
    """Write a shard's file atomically, flush it to disk, and return the BLAKE3 digest of its bytes.

    Args:
        tensors: tensors of the layout without paddings, each as consecutive contiguous pieces that
            together have the layout's shape.
        layout: layout of the file.

    Raises:
        DataError: the file cannot be written; no partial file remains.
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
    """Split consecutive contents into whole huge pages, so that the page cache can use huge pages."""
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
