"""Rows of shards as NumPy arrays: a shard is a safetensors file, read here without that package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shardline_io.column_names import OFFSETS, PADDING, PRESENT
from shardline_io.errors import DataError
from shardline_io.order.pieces import Piece

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in _DTYPES.items()}  # of the format, by NumPy's


def header_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return what a safetensors file of some tensors begins with; these follow, one after another.

    Raises:
        KeyError: a type that the format or NumPy does not have.
    """
    header, end = {}, 0
    for name, of in tensors.items():
        place = [end, end + of.nbytes]
        header[name] = {"dtype": NAMES[of.dtype.name], "shape": of.shape, "data_offsets": place}
        end = place[1]
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin aligned
    return len(text).to_bytes(8, "little") + text


def tensors_of(content: np.ndarray) -> dict[str, np.ndarray]:
    """Return views of the tensors in the content [n] uint8 of a safetensors file, by name.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: it is not that of such a file.
    """
    begin = 8 + int(content[:8].view("<u8")[0])
    header = json.loads(content[8:begin].tobytes())
    found, end = {}, 0
    for name, of in header.items():
        if name != "__metadata__":
            first, last = of["data_offsets"]
            values = content[begin + first : begin + last].view(_DTYPES[of["dtype"]])
            found[name], end = values.reshape(of["shape"]), max(end, last)
    if len(content) != begin + end:
        raise ValueError("it has another size than its header tells")
    return found


class Shards:
    """The shards of a sealed dataset.

    Args:
        manifest: of the dataset.
        folder: where its shards are.
    """

    def __init__(self, manifest: Mapping[str, Any], folder: Path) -> None:
        self._records: Sequence[Mapping[str, Any]] = manifest["shards"]
        self._folder = folder
        self._tensors = lru_cache(maxsize=64)(self._mapped)

    def _mapped(self, shard: int) -> dict[str, np.ndarray]:
        """Return the tensors of a shard's file, mapped.

        Raises:
            DataError: it cannot be read, or has another size than the manifest records.
        """
        path, expected = self._folder / self._records[shard]["file"], self._records[shard]["bytes"]
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(
                f"shard {path} cannot be read ({error}); start the pipeline again"
            ) from None
        if len(content) != expected:
            raise DataError(
                f"shard {path} has {len(content):,} bytes, expected {expected:,} by its manifest; "
                "run `shardline verify --repair` for its dataset"
            )
        try:
            return tensors_of(content)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"shard {path} has no header of its tensors ({type(error).__name__}: {error}), expected that of a "
                "safetensors file; run `shardline verify --repair` for its dataset"
            ) from None

    def names(self) -> list[str]:
        """Return the columns, with the ids, in the order of the file."""
        hidden = (OFFSETS, PRESENT)
        tensors = self._tensors(0)
        return [n for n in tensors if not n.endswith(hidden) and not n.startswith(PADDING)]

    def varies(self, name: str) -> bool:
        """Return whether a column's first dimension varies from row to row."""
        return name + OFFSETS in self._tensors(0)

    def is_optional(self, name: str) -> bool:
        """Return whether rows may have no value of a column."""
        return name + PRESENT in self._tensors(0)

    def fixed(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return a tensor's entries of the rows of pieces [n, *shape]."""
        return np.concatenate([self._tensors(p.shard)[name][p.first : p.last] for p in pieces])

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return how many values a varying column has in each row of pieces [n] int64."""
        return np.concatenate([np.diff(self._offsets(name, piece)) for piece in pieces])

    def rows(self, name: str, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Return a varying column's values [length, *shape] of each row of pieces."""
        found: list[np.ndarray] = []
        for piece in pieces:
            offsets = self._offsets(name, piece)
            first, last = int(offsets[0]), int(offsets[-1])
            # a copy, so that the disk is read here and not with each batch
            values = self._tensors(piece.shard)[name][first:last].copy()
            found += [values[a - first : b - first] for a, b in zip(offsets[:-1], offsets[1:])]
        return found

    def _offsets(self, name: str, piece: Piece) -> np.ndarray:
        tensors = self._tensors(piece.shard)
        found = tensors[name + OFFSETS][piece.first : piece.last + 1]
        if found[0] < 0 or found[-1] > len(tensors[name]) or (np.diff(found) < 0).any():
            raise DataError(
                f"shard {self._folder / self._records[piece.shard]['file']}: the offsets of {name} do not rise from 0 "
                f"to {len(tensors[name]):,}, the number of its values; run `shardline verify --repair` for its dataset"
            )
        return found
