"""`best_fit` packing: combine rows into packs of one length, without cutting rows that fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardline.core.errors import DataError
from shardline.data.block_units import PackedUnits, begins_of, numbered, unit_ids
from shardline.data.columns import Column
from shardline.data.pack_plans import PackPlan, PlanFile
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import WindowMap
from shardline_io.order.pieces import Piece

POSITIONS, CU_SEQLENS = ".positions", ".cu_seqlens"


@dataclass(frozen=True, kw_only=True)
class PackUnits(PackedUnits):
    """Packs of rows, see `shardline_io.order.best_fit`; a row that is longer than a pack is cut.

    A sample has the values of its rows back to back, padded with zeros, and two columns that tell the
    rows apart:

    - `{column}` [length, *shape], and each of `others` likewise;
    - `{column}.positions` [length] int32: position of each value in its row, or in its part of a cut row;
    - `{column}.cu_seqlens` [rows + 1] int32: position where each row begins, from 0, and at last the
      number of values.

    A pack's id is shard << 32 | pack.

    Attributes:
        name: name of the split.

    Raises:
        DataError: the length is not from 1 to 2^31 - 1, or a column of the dataset has the name of an
            added column.
    """

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (self.column + POSITIONS, self.column + CU_SEQLENS):
            if name in self.others:
                raise DataError(
                    f"dataset {self.shards.manifest.dataset}: column {name} has the name of a column that packs of "
                    f"{self.column} add, expected another name; rename the column in the source, or remove it from "
                    "data.pack.with"
                )

    @cached_property
    def plan(self) -> PackPlan:
        """Plan of the packs, computed on first use and stored next to the shards.

        Raises:
            DataError: a shard cannot be read, or its offsets do not rise.
        """
        return PlanFile(
            shards=self.shards, name=self.name, split=self.split, column=self.column, length=self.length
        ).plan()  # fmt: skip

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Packs of each piece of the split, numbered from 0 within each shard."""
        return numbered(self.split, np.diff(self.plan.packs).tolist())

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of a sample."""
        return {
            **super().columns,
            self.column + POSITIONS: Column(dtype="int32", shape=(self.length,)),
            self.column + CU_SEQLENS: Column(dtype="int32", varies=True),
        }

    @property
    def counted(self) -> tuple[str, ...]:
        """The packed column; padding does not count."""
        return (self.column,)

    @cached_property
    def waste(self) -> float:
        """Share of the packs' space without a value, 0 to 1."""
        places = len(self.plan.used) * self.length
        return 1 - int(self.plan.used.sum(dtype=np.int64)) / places if places else 0.0

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return all rows from the first to the last row in each piece's packs.

        Raises:
            DataError: the plan contains rows of another split.
        """
        return tuple(self.span(piece, self.segments(piece)[0]) for piece in pieces)

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedPacks":
        """Return packs of a window whose rows are in memory.

        Raises:
            DataError: the plan does not match the rows, or a row has another number of values in
                one of `others`.
        """
        return LoadedPacks(self, memory, pieces)

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of entries in `cu_seqlens`, or of values in another column, per pack [n] int64."""
        found = [np.empty(0, np.int64)]
        for piece in pieces:
            first, last = self._packs(piece)
            if name == self.column + CU_SEQLENS:
                found.append(np.diff(self.plan.firsts[first : last + 1]) + 1)
            else:
                found.append(self.plan.used[first:last].astype(np.int64))
        return np.concatenate(found)

    def segments(self, piece: Piece) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row and part of each segment [m] int64, and the bounds of packs among the segments [n + 1]."""
        first, last = self._packs(piece)
        rows, parts = self.plan.segments(first, last)
        bounds = self.plan.firsts[first : last + 1]
        return rows + self.split[self._owner(piece)[1]].first, parts, bounds - bounds[0]

    def _packs(self, piece: Piece) -> tuple[int, int]:
        whole, place = self._owner(piece)
        before = int(self.plan.packs[place]) - whole.first
        return before + piece.first, before + piece.last

    def span(self, piece: Piece, rows: np.ndarray) -> Piece:
        """Return all rows from the first to the last of some rows.

        Raises:
            DataError: a row is not in the split.
        """
        of_split = self.split[self._owner(piece)[1]]
        first, last = int(rows.min()), int(rows.max()) + 1
        if last > of_split.last:
            raise self.plan.bad(
                f"contains row {last - 1:,} of shard {piece.shard}, whose {self.name} rows end before {of_split.last:,}"
            )
        return Piece(piece.shard, first, last)


class LoadedPacks:
    """Packs whose rows are in memory."""

    def __init__(self, units: PackUnits, memory: WindowMap, pieces: Sequence[Piece]) -> None:
        self._units, self._memory, self._pieces = units, memory, pieces
        self._columns = units.stored
        none = [np.empty(0, np.int64)]
        starts: dict[str, list[np.ndarray]] = {name: [*none] for name in self._columns}
        sizes, bounds, before = [*none], [np.zeros(1, np.int64)], 0
        for piece in pieces:
            rows, parts, of_packs = units.segments(piece)
            span = units.span(piece, rows)
            begins, lengths = begins_of(units.shards, memory, span, units.column, units.others)
            rows -= span.first
            skipped = parts * units.length
            size = np.minimum(lengths[rows] - skipped, units.length)
            self._check(piece, size, of_packs)
            for name, column in self._columns.items():
                starts[name].append(begins[name][rows] + skipped * column.item_bytes)
            sizes.append(size)
            bounds.append(of_packs[1:] + before)
            before += len(rows)
        self._starts = {name: np.concatenate(of) for name, of in starts.items()}
        self._sizes, self._bounds = np.concatenate(sizes), np.concatenate(bounds)

    @property
    def ids(self) -> np.ndarray:
        """Ids of packs [n] int64."""
        return unit_ids(self._pieces)

    def sample(self, place: int) -> Sample:
        """Return a pack."""
        units = self._units
        first, last = self._bounds[place : place + 2].tolist()
        sizes = self._sizes[first:last]
        begins = np.zeros(last - first + 1, np.int32)
        np.cumsum(sizes, out=begins[1:])
        sample: Sample = {}
        for name, column in self._columns.items():
            values = np.zeros((units.length, *column.shape), column.dtype)
            starts = self._starts[name][first:last].tolist()
            for start, at, size in zip(starts, begins.tolist(), sizes.tolist(), strict=False):
                values[at : at + size] = self._memory.row(name, start, size)
            sample[name] = values
        positions = np.zeros(units.length, np.int32)
        used = int(begins[-1])
        positions[:used] = np.arange(used, dtype=np.int32) - np.repeat(begins[:-1], sizes)
        return {**sample, units.column + POSITIONS: positions, units.column + CU_SEQLENS: begins}

    def batch(self, places: np.ndarray) -> None:
        """Return None: packs have different numbers of rows."""

    def _check(self, piece: Piece, sizes: np.ndarray, bounds: np.ndarray) -> None:
        """Check that segments [m] are parts of rows, and packs are as full as planned."""
        used = np.add.reduceat(sizes, bounds[:-1])
        if sizes.min() < 1 or (used != self._units.lengths(self._units.column, [piece])).any():
            raise self._units.plan.bad(
                f"contains values that the rows of shard {piece.shard} do not have"
            )
