"""What the order shuffles, and how a sample is read: rows, blocks of documents, or packs of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from shardline.data.columns import Column, varying_arrays
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import NARROW_BYTES, WindowMap
from shardline_io.column_names import PRESENT
from shardline_io.order.pieces import Piece


class Loaded(Protocol):
    """The units of a window, in memory.

    Attributes:
        ids: of the units [n] int64, in the order of the pieces.
    """

    @property
    def ids(self) -> np.ndarray: ...  # noqa: D102

    def sample(self, place: int) -> Sample:
        """Return a unit, by its place among those of the pieces."""

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return units column by column [n, *shape]; None where that is not quicker than by `sample`."""


class SampleIndex(Protocol):
    """What one dataset's split gives to a training, as the order counts it.

    Attributes:
        pieces: the units of each shard, counted from 0 within what the shard has for this split or
            from the shard's first row; only the units themselves know.
        columns: what a sample holds.
        counted: columns whose number of values differs between batches, which therefore have
            `{name}.mean_count`.
        unit_bytes: memory of a unit, in the mean.
    """

    @property
    def pieces(self) -> tuple[Piece, ...]: ...  # noqa: D102

    @property
    def columns(self) -> Mapping[str, Column]: ...  # noqa: D102

    @property
    def counted(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def unit_bytes(self) -> int: ...  # noqa: D102

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the rows of shards that have to be in memory for some units."""

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> Loaded:
        """Return units of a window whose rows are in memory."""

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return how many values a varying column has in each unit [n] int64, without their rows in memory."""


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """What units that are rows have in common.

    Attributes:
        shards: the dataset.
    """

    shards: ShardMap

    @property
    def columns(self) -> Mapping[str, Column]:
        """What a sample holds."""
        return self.shards.columns

    @property
    def counted(self) -> tuple[str, ...]:
        """The varying columns of numbers."""
        return varying_arrays(self.shards.columns)

    @property
    def unit_bytes(self) -> int:
        """Memory of a row, in the mean."""
        return self.shards.row_bytes


@dataclass(frozen=True, kw_only=True)
class RowUnits(StoredRows):
    """Rows as they are stored.

    Attributes:
        pieces: the split's rows in each shard.
    """

    pieces: tuple[Piece, ...]

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the rows that units are: these."""
        return tuple(pieces)

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedRows":
        """Return rows of a window, which are in memory."""
        return LoadedRows(self.shards, memory, pieces)

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return how many values a varying column has in each row [n] int64."""
        return self.shards.lengths(name, pieces)


class LoadedRows:
    """Rows in memory, each read where it lies."""

    def __init__(self, shards: ShardMap, memory: WindowMap, pieces: Sequence[Piece]) -> None:
        self._shards, self._memory, self._pieces = shards, memory, pieces
        sizes = [piece.last - piece.first for piece in pieces]
        self._piece_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._firsts = np.cumsum([0, *sizes[:-1]])
        self._ragged, self._views = {}, {}
        for name, column in shards.columns.items():
            if column.varies:
                self._ragged[name] = memory.ragged(name, pieces)
            else:
                self._views[name] = self._view(name)
            if column.optional:
                self._views[name + PRESENT] = self._view(name + PRESENT)

    def _view(self, name: str) -> list[np.ndarray]:
        """Return what each piece has of a fixed tensor."""
        return [self._memory.view(name, p.shard, p.first, p.last) for p in self._pieces]

    @property
    def ids(self) -> np.ndarray:
        """Row ids [n] int64."""
        return self._shards.ids(self._pieces)

    def sample(self, place: int) -> Sample:
        """Return a row."""
        piece = self._piece_of[place]
        row = place - int(self._firsts[piece])
        sample: Sample = {}
        for name, column in self._shards.columns.items():
            if column.optional and not self._views[name + PRESENT][piece][row]:
                sample[name] = None
            elif column.varies:
                starts, lengths = self._ragged[name]
                values = self._memory.row(name, int(starts[place]), int(lengths[place]))
                sample[name] = column.value(values)
            else:
                sample[name] = self._views[name][piece][row]
        return sample

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return rows column by column [n, *shape]; None where a column varies or is optional."""
        columns = self._shards.columns
        if any(column.varies or column.optional for column in columns.values()):
            return None
        batch = {name: np.empty((len(places), *of.shape), of.dtype) for name, of in columns.items()}
        for name, out in batch.items():
            if columns[name].item_bytes > NARROW_BYTES:
                self._memory.gather(name, self._gathered(name)[places], out)
            else:
                np.take(self._gathered(name), places, axis=0, out=out)
        return batch

    def _gathered(self, name: str) -> np.ndarray:
        """Return the places of a wide column's rows [n], or all values of a narrow one [n, *shape]."""
        if name not in self._columns:
            is_wide = self._shards.columns[name].item_bytes > NARROW_BYTES
            find = self._memory.places if is_wide else self._memory.values
            self._columns[name] = find(name, self._pieces)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return {}
