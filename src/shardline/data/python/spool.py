"""Rows of iterable data on the way to shards: the number of rows is known only after the only pass."""

import bisect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardline.data.sources.source import Masked, Ragged
from shardline_io.column_names import OFFSETS, PRESENT

Columns = Mapping[str, Any]
_OWN = "column."  # before names, since `savez` has arguments of its own


class Spool:
    """Blocks of rows in temporary files, which any range of rows can be read from.

    Args:
        folder: empty folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[str, list[int]] = {}

    def write(self, split: str, blocks: Iterable[tuple[int, Columns]]) -> None:
        """Write the blocks of a split, each with its number of rows."""
        ends = self._ends[split] = [0]
        for number, columns in blocks:
            with self._file(split, len(ends) - 1).open("wb") as file:
                np.savez(file, **dict(_tensors(columns)))  # type: ignore[arg-type]
            ends.append(ends[-1] + number)

    @property
    def lengths(self) -> dict[str, int]:
        """Number of rows by split."""
        return {split: ends[-1] for split, ends in self._ends.items()}

    def read(self, split: str, first: int, last: int) -> Iterator[tuple[int, int, Columns]]:
        """Yield the blocks with the rows from `first` to before `last`, as (first row, rows, columns)."""
        ends = self._ends[split]
        number = bisect.bisect_right(ends, first) - 1
        while first < last:
            stop, before = min(last, ends[number + 1]), ends[number]
            with np.load(self._file(split, number), allow_pickle=False) as tensors:
                columns = _columns({key[len(_OWN) :]: tensors[key] for key in tensors})
            part = {name: _cut(of, first - before, stop - before) for name, of in columns.items()}
            yield first, stop - first, part
            first, number = stop, number + 1

    def _file(self, split: str, number: int) -> Path:
        return self._folder / f"{split}-{number:06d}.npz"


def _tensors(columns: Columns) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in columns.items():
        if isinstance(values, Masked):
            yield _OWN + name + PRESENT, values.present
            values = values.values
        if isinstance(values, Ragged):
            yield _OWN + name + OFFSETS, values.offsets
            values = values.values
        yield _OWN + name, np.ascontiguousarray(values)


def _columns(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, values in tensors.items():
        if name.endswith((OFFSETS, PRESENT)):
            continue
        found: Any = values
        if name + OFFSETS in tensors:
            found = Ragged(values=values, offsets=tensors[name + OFFSETS])
        if name + PRESENT in tensors:
            found = Masked(values=found, present=tensors[name + PRESENT])
        columns[name] = found
    return columns


def _cut(values: Any, first: int, last: int) -> Any:
    if isinstance(values, Masked):
        present = values.present[first:last]
        return Masked(values=_cut(values.values, first, last), present=present)
    if isinstance(values, Ragged):
        offsets = values.offsets[first : last + 1]
        cut = values.values[offsets[0] : offsets[-1]]
        return Ragged(values=cut, offsets=offsets - offsets[0])
    return values[first:last]
