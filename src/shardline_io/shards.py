"""Rows of shards as NumPy arrays; reads safetensors files without the package safetensors."""

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
NAMES = {dtype: name for name, dtype in _DTYPES.items()}  # names in the format, by NumPy's names


def header_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return the header of a safetensors file; the tensors follow it, back to back.

    Raises:
        KeyError: NumPy or the safetensors format lacks the type of a tensor.
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
    """Return views of the tensors in a safetensors file by name.

    Args:
        content: bytes of the file [n] uint8.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: the content is not a safetensors file.
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
        raise ValueError("its size differs from its header")
    return found


class Shards:
    """The shards of a sealed dataset.

    Args:
        manifest: manifest of the dataset.
        folder: folder of the shards.
    """

    def __init__(self, manifest: Mapping[str, Any], folder: Path) -> None:
        self._records = manifest["shards"]
        self._folder = folder
        self._tensors = lru_cache(maxsize=64)(self._mapped)

    def _mapped(self, shard: int) -> dict[str, np.ndarray]:
        """Map the tensors of a shard's file.

        Raises:
            DataError: the file cannot be read, or its size differs from the manifest.
        """
        path, expected = self._folder / self._records[shard]["file"], self._records[shard]["bytes"]
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(
                f"shard {path} cannot be read ({error}), expected a readable file; start the pipeline again"
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
                f"shard {path} has no valid header ({type(error).__name__}: {error}), expected a safetensors file; "
                "run `shardline verify --repair` for its dataset"
            ) from None

    def names(self) -> list[str]:
        """Return the names of the columns and ids, in the order of the file."""
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
        """Return a fixed tensor's values [n, *shape] for the rows of pieces."""
        return np.concatenate([self._tensors(p.shard)[name][p.first : p.last] for p in pieces])

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values of a varying column in each row of pieces [n] int64."""
        return np.concatenate([np.diff(self._offsets(name, piece)) for piece in pieces])

    def rows(self, name: str, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Return a varying column's values [length, *shape] for each row of pieces."""
        found: list[np.ndarray] = []
        for piece in pieces:
            offsets = self._offsets(name, piece)
            first, last = int(offsets[0]), int(offsets[-1])
            # a copy, so that the disk is read now and not with each batch
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
