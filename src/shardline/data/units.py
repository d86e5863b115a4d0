"""What the order shuffles, and how a sample is read: rows, blocks of documents, or packs of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardline.data.columns import PRESENT, Column
from shardline.data.shard_map import ShardMap
from shardline.data.windowmap import WindowMap
from shardline.order.pieces import Piece

Sample = dict[str, Any]  # by column: an array (that cannot be written to), bytes, a text, or None


class Loaded(Protocol):
    """The units of a window, in memory.

    Attributes:
        ids: of the units [n] int64, in the order of the pieces.
    """

    @property
    def ids(self) -> np.ndarray: ...  # noqa: D102

    def sample(self, place: int) -> Sample:
        """Return a unit, by its place among those of the pieces."""


class Units(Protocol):
    """What one dataset's split gives to a training, as the order counts it.

    Attributes:
        pieces: the units of each shard, counted from 0 within what the shard has for this split or
            from the shard's first row; only the units themselves know.
        columns: what a sample holds.
        unit_bytes: memory of a unit, in the mean.
    """

    @property
    def pieces(self) -> tuple[Piece, ...]: ...  # noqa: D102

    @property
    def columns(self) -> Mapping[str, Column]: ...  # noqa: D102

    @property
    def unit_bytes(self) -> int: ...  # noqa: D102

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the rows of shards that have to be in memory for some units."""

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> Loaded:
        """Return units of a window whose rows are in memory."""

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return how many values a varying column has in each unit [n] int64, without their rows in memory."""


@dataclass(frozen=True, kw_only=True)
class RowUnits:
    """Rows as they are stored.

    Attributes:
        shards: the dataset.
        pieces: the split's rows in each shard.
    """

    shards: ShardMap
    pieces: tuple[Piece, ...]

    @property
    def columns(self) -> Mapping[str, Column]:
        """What a sample holds."""
        return self.shards.columns

    @property
    def unit_bytes(self) -> int:
        """Memory of a row, in the mean."""
        return self.shards.row_bytes

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
        self._ends = np.cumsum([piece.last - piece.first for piece in pieces])
        self._ragged = {
            name: memory.ragged(name, pieces)
            for name, column in shards.columns.items()
            if column.varies
        }

    @property
    def ids(self) -> np.ndarray:
        """Row ids [n] int64."""
        return self._shards.ids(self._pieces)

    def sample(self, place: int) -> Sample:
        """Return a row."""
        index = int(np.searchsorted(self._ends, place, side="right"))
        piece = self._pieces[index]
        row = piece.last - int(self._ends[index]) + place
        sample: Sample = {}
        for name, column in self._shards.columns.items():
            if (
                column.optional
                and not self._memory.view(name + PRESENT, piece.shard, row, row + 1)[0]
            ):
                sample[name] = None
            elif column.varies:
                starts, lengths = self._ragged[name]
                sample[name] = column.value(
                    self._memory.row(name, int(starts[place]), int(lengths[place]))
                )
            else:
                sample[name] = self._memory.view(name, piece.shard, row, row + 1)[0]
        return sample
