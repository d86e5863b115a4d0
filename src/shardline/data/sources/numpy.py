"""Source of NumPy files: `.npy`, and `.npz` archives. What is not compressed is memory-mapped."""

import math
import zipfile
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from shardline.core.errors import DataError
from shardline.data.sources.array_rows import Array, ArrayTable
from shardline.data.sources.arrays import ArrayFiles

_REMEDY = "save it again, or remove it from source.files"
_DAMAGED = (OSError, EOFError, ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RuntimeError,
            zlib.error, zipfile.BadZipFile)  # fmt: skip
_PACKED = 1032  # bytes that deflate packs into one, at most


class Numpy(ArrayFiles):
    """Rows of NumPy files.

    An `.npz` file is a table; its arrays are columns. All `.npy` files of a folder together are a table;
    their names without `.npy` are those of the columns. `ArrayFiles` describes the arguments.
    """

    def open_tables(self) -> list[ArrayTable]:
        """Return the arrays of all files."""
        folders: dict[Path, dict[str, int]] = {}
        tables = []
        for index, path in enumerate(self.files):
            if path.suffix == ".npy":
                folders.setdefault(path.parent, {})[path.stem] = index
            else:
                arrays = _reading(path, _members)
                tables.append(ArrayTable(file=index, where=str(path), arrays=arrays))
        for folder, places in folders.items():
            self._check_splits(places)
            arrays = {name: _reading(self.files[place], _mapped) for name, place in places.items()}
            where = str(folder) if len(places) > 1 else str(self.files[next(iter(places.values()))])
            tables.append(ArrayTable(file=min(places.values()), where=where, arrays=arrays))
        return sorted(tables, key=lambda table: table.file)

    def _check_splits(self, places: dict[str, int]) -> None:
        splits = self.splits.get("files")
        if splits and len({splits[place] for place in places.values()}) > 1:
            first, other = (self.files[place] for place in list(places.values())[:2])
            raise DataError(
                f"{first}: splits.files assigns the .npy files of its folder to different splits, expected one since "
                f"they are columns of the same rows, such as {other.name}; put each split into a folder of its own"
            )

    def is_text(self, array: Array) -> bool:
        """Return whether an array contains text."""
        return array.dtype.kind in "US"


class _Member:
    """A compressed array of an archive, which is unpacked as a whole when its rows are read."""

    def __init__(self, path: Path, info: zipfile.ZipInfo) -> None:
        self._path, self._info = path, info
        with zipfile.ZipFile(path) as archive, archive.open(info) as file:
            self.shape, _, self.dtype = _header(file)
            most = min(info.file_size, _PACKED * info.compress_size) - file.tell()
        _check_size(self.shape, self.dtype, most)

    @cached_property
    def _whole(self) -> np.ndarray:
        with zipfile.ZipFile(self._path) as archive, archive.open(self._info) as file:
            return np.asarray(npy.read_array(file, allow_pickle=False))

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._whole[rows]


def _members(path: Path) -> dict[str, Array]:
    """Return the arrays of an archive by name."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if info.compress_type != zipfile.ZIP_STORED:
                found[name] = _Member(path, info)
                continue
            file.seek(info.header_offset)
            head = file.read(30)
            sizes = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            found[name] = _mapped(path, info.header_offset + 30 + sizes, info.file_size)
    return found


def _mapped(path: Path, offset: int = 0, num_bytes: int | None = None) -> Array:
    """Return the array that begins at an offset of a file, memory-mapped.

    Args:
        num_bytes: Size of header and array. Default: up to the end of the file.
    """
    end = path.stat().st_size if num_bytes is None else offset + num_bytes
    with path.open("rb") as file:
        file.seek(offset)
        shape, is_fortran, dtype = _header(file)
        start = file.tell()
    _check_size(shape, dtype, end - start)
    if 0 in shape:
        return np.zeros(shape, dtype)
    order: Any = "F" if is_fortran else "C"
    return np.memmap(path, dtype, "r", start, shape, order)


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], most: int) -> None:
    wanted = math.prod(shape) * dtype.itemsize
    if not wanted:
        np.zeros(shape, dtype)  # raises an error for a size that no array may have
    if wanted > most:
        raise ValueError(f"{wanted:,} bytes are needed for the shape {shape}, but it has {most:,}")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it contains pickled objects, expected numbers or text")
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {shape}, expected no sizes below 0")
    return shape, is_fortran, dtype


def _reading(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return what a function reads of a file.

    Raises:
        DataError: The file is damaged, or contains pickled objects. The message names it.
    """
    try:
        return read(path)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read as {path.suffix.lstrip('.') or 'npy'} ({reason}), expected a complete file of "
            f"arrays; {_REMEDY}"
        ) from None
