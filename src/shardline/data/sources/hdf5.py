"""Source of HDF5 files, read by h5py."""

from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources.array_rows import Array, ArrayTable
from shardline.data.sources.arrays import ArrayFiles


class Hdf5(ArrayFiles):
    """Rows of HDF5 files. A file is a table; its datasets are columns, named by their path, such as `train/x`.

    `ArrayFiles` describes the arguments.
    """

    def open_tables(self) -> list[ArrayTable]:
        """Return the datasets of all files."""
        return [
            ArrayTable(file=index, where=str(path), arrays=_datasets(path))
            for index, path in enumerate(self.files)
        ]

    def is_text(self, array: Array) -> bool:
        """Return whether an array contains text."""
        return isinstance(array, _Texts) or array.dtype.kind in "S"

    def _type(self, table: ArrayTable, name: str) -> Column | str:
        array = table.arrays[name]
        if isinstance(array, _Varying):
            return f"{array.base.name}[*]"
        return super()._type(table, name)


class _Texts:
    """A dataset of texts of any length."""

    def __init__(self, of: Any) -> None:
        self._of, self.shape, self.dtype = of, of.shape, of.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self._of.asstr()[rows])


class _Varying(_Texts):
    """A dataset of rows of different lengths."""

    def __init__(self, of: Any, base: np.dtype[Any]) -> None:
        super().__init__(of)
        self.base = base

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self._of[rows], dtype=object)


def _datasets(path: Path) -> dict[str, Array]:
    """Return the datasets of a file by path."""
    try:
        import h5py
    except ImportError:
        raise DataError(
            'source type hdf5 needs the package h5py; install it, as by pip install "shardline[hdf5]"'
        ) from None
    found: dict[str, Array] = {}

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            return
        base = h5py.check_vlen_dtype(item.dtype)
        text = h5py.check_string_dtype(item.dtype)
        if text is not None and text.length is None:
            found[name] = _Texts(item)
        else:
            found[name] = item if base is None else _Varying(item, base)

    try:
        h5py.File(path, "r").visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read as HDF5 ({reason}), expected a complete file; save it again, or remove it from "
            "source.files"
        ) from None
    return found
