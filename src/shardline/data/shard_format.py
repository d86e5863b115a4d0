"""The file of one shard: where its columns lie, how it is written, digested on the way.

A shard is a safetensors file, so any reader of that format maps it: 8 bytes of
header length, a JSON header, then `features` [N, *shape], `labels` [N] and
`ids` [N], back to back. The header is padded with spaces, which the format
allows, to `HEADER_BYTES`: features then begin on a page boundary, whatever the
page size, and every column's place follows from the manifest alone.
"""

import builtins
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from shardline.core.errors import DataError
from shardline.core.files import atomic_writer

HEADER_BYTES = 65536  # the largest page size in use (64 KiB, on Arm servers)
COLUMNS = ("features", "labels", "ids")
_HUGE_PAGE_BYTES = 2 << 20
_PIECE_BYTES = 1 << 20  # written and digested while still in the processor's cache
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "bool": "BOOL",
}  # fmt: skip
FEATURE_DTYPES = tuple(_NAMES)
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
class Layout:
    """Where each column of a shard lies.

    Attributes:
        offsets: byte offset of each column from the start of the file.
        shapes: shape of each column.
        dtypes: NumPy type of each column.
        bytes: size of the file.
    """

    offsets: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    bytes: int

    @classmethod
    def of(cls, schema: Mapping[str, Any], rows: int) -> "Layout":
        """Return the layout of a shard of this many rows.

        Args:
            schema: a manifest's `schema`: `feature_shape`, `feature_dtype`, `task`.
        """
        shapes = {"features": (rows, *schema["feature_shape"]), "labels": (rows,), "ids": (rows,)}
        label = "int64" if schema["task"] == "classification" else "float32"
        dtypes = {
            "features": np.dtype(schema["feature_dtype"]),
            "labels": np.dtype(label),
            "ids": np.dtype("int64"),
        }
        offsets, end = {}, HEADER_BYTES
        for name in COLUMNS:
            offsets[name] = end
            end += int(np.prod(shapes[name])) * dtypes[name].itemsize
        return cls(offsets=offsets, shapes=shapes, dtypes=dtypes, bytes=end)

    def header(self, shard: int) -> builtins.bytes:
        """Return the file's first `HEADER_BYTES` bytes."""
        columns = {
            name: {
                "dtype": _NAMES[self.dtypes[name].name],
                "shape": list(self.shapes[name]),
                "data_offsets": [
                    self.offsets[name] - HEADER_BYTES,
                    self.offsets[name] - HEADER_BYTES + self.nbytes(name),
                ],
            }
            for name in COLUMNS
        }
        text = json.dumps({"__metadata__": {"shard": str(shard)}, **columns}).encode()
        length = HEADER_BYTES - 8
        return length.to_bytes(8, "little") + text.ljust(length)

    def nbytes(self, name: str) -> int:
        """Return the size of a column in bytes."""
        return int(np.prod(self.shapes[name])) * self.dtypes[name].itemsize


def write_shard(
    path: Path, columns: Mapping[str, Sequence[np.ndarray]], layout: Layout, *, shard: int
) -> str:
    """Write a shard's file, all or nothing and on disk, and return the BLAKE3 digest of its bytes.

    Args:
        columns: `features`, `labels` and `ids`, each in contiguous pieces that follow
            one another and together have the layout's shape.

    Raises:
        DataError: it cannot be written; nothing half-written stays.
    """
    digest = blake3()
    contents = [memoryview(layout.header(shard))]
    contents += [
        piece.reshape(-1).view(np.uint8).data for name in COLUMNS for piece in columns[name]
    ]
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
