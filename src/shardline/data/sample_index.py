"""Units that the order shuffles, and how a sample is read from them: rows, blocks or packs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from shardline.data.columns import Column, counted_columns
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import NARROW_BYTES, WindowMap
from shardline_io.column_names import PRESENT
from shardline_io.order.pieces import Piece


class Loaded(Protocol):
    """Units of a window in memory.

    Attributes:
        ids: ids of the units [n] int64, in the order of the pieces.
    """

    @property
    def ids(self) -> np.ndarray: ...  # noqa: D102

    def sample(self, place: int) -> Sample:
        """Return a unit by its index in the pieces."""

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return units as columns [n, *shape]; None if that is not faster than `sample`."""


class SampleIndex(Protocol):
    """Units of one dataset's split, which the order counts and shuffles.

    Attributes:
        pieces: ranges of units in each shard; each class of units numbers them in its own way.
        columns: columns of a sample.
        counted: columns whose number of values differs between batches, so batches have
            `{name}.mean_count`.
        unit_bytes: mean memory per unit.
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
        """Return the rows of shards that must be in memory for some units."""

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> Loaded:
        """Return units of a window whose rows are in memory."""

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values of a varying column, or the weight, per unit [n], without loading rows."""


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Base class of units that are rows.

    Attributes:
        shards: shards of the dataset.
    """

    shards: ShardMap

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of a sample."""
        return self.shards.made

    @property
    def counted(self) -> tuple[str, ...]:
        """The varying array columns, and the weights of the rows."""
        return counted_columns(self.shards.manifest.schema, self.shards.columns)

    @property
    def unit_bytes(self) -> int:
        """Mean memory per row."""
        return self.shards.row_bytes


@dataclass(frozen=True, kw_only=True)
class RowUnits(StoredRows):
    """Rows as stored.

    Attributes:
        pieces: the split's rows in each shard.
    """

    pieces: tuple[Piece, ...]

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the same pieces, since units are rows."""
        return tuple(pieces)

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedRows":
        """Return rows of a window that is in memory."""
        return LoadedRows(self.shards, memory, pieces)

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values of a varying column in each row [n] int64."""
        return self.shards.lengths(name, pieces)


class LoadedRows:
    """Rows in memory, read without a copy."""

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
        """Return the values of a fixed tensor in each piece."""
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
        if self._shards.preprocessor:
            made = self._shards.preprocessor({name: of[None] for name, of in sample.items()})
            return {name: of[0] for name, of in made.items()}
        return sample

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return rows as columns [n, *shape]; None if a column varies or is optional."""
        columns = self._shards.columns
        if any(column.varies or column.optional for column in columns.values()):
            return None
        batch = {name: np.empty((len(places), *of.shape), of.dtype) for name, of in columns.items()}
        for name, out in batch.items():
            if columns[name].item_bytes > NARROW_BYTES:
                self._memory.gather(name, self._gathered(name)[places], out)
            else:
                np.take(self._gathered(name), places, axis=0, out=out)
        return self._shards.preprocessor(batch) if self._shards.preprocessor else batch

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
