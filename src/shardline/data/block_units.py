"""A column's values cut into blocks of one length, such as a language model's documents: `concat` packing."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import WindowMap
from shardline_io.column_names import OFFSETS
from shardline_io.order.pieces import Piece, num_rows

_READERS, _CHUNK = 16, 256  # of an offset or two a shard: on a network file system a wait each


@dataclass(frozen=True, kw_only=True)
class PackedUnits(ABC):
    """What blocks and packs of a varying column have in common.

    Attributes:
        shards: the dataset.
        split: the split's rows in each shard.
        column: whose values are put into units; of texts and bytes, their bytes.
        length: of a unit, in values.
        others: columns that go along; a row has as many values of each as of `column`.

    Raises:
        DataError: the length is no positive number.
    """

    shards: ShardMap
    split: tuple[Piece, ...]
    column: str
    length: int
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.length < 2**31:
            raise DataError(
                f"dataset {self.shards.manifest.dataset}: {self.column} is to be packed to a length of "
                f"{self.length}, expected 1 to 2,147,483,647; give another length"
            )

    @property
    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """The units of each shard, counted from 0."""

    @property
    def stored(self) -> Mapping[str, Column]:
        """The dataset's columns that units have values of."""
        return {name: self.shards.columns[name] for name in (self.column, *self.others)}

    @property
    def columns(self) -> Mapping[str, Column]:
        """What a sample holds."""
        return {
            name: Column(dtype=column.dtype, shape=(self.length, *column.shape))
            for name, column in self.stored.items()
        }

    @cached_property
    def unit_bytes(self) -> int:
        """Memory of a unit, in the mean, with the other columns of its rows."""
        return max(1, num_rows(self.split) * self.shards.row_bytes // max(1, num_rows(self.pieces)))


@dataclass(frozen=True, kw_only=True)
class BlockUnits(PackedUnits):
    """Blocks of a varying column's values; the ends of rows do not count.

    A shard's rows of a split lie back to back, and so do their values. Block b of a shard has those
    from b * length on; what is left at the shard's end is in no block. Nothing is stored: where a
    block lies follows from the first and the last offset of the split's rows.

    A sample is {column: [length, *shape]}, and so each of `others`; what is left belongs to rows,
    and is left out. A block's id is shard << 32 | block.
    """

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The blocks of each shard, counted from 0.

        Raises:
            DataError: a shard cannot be read or has other offsets than its manifest records, or no
                shard has enough values for one block.
        """
        counts = [(last - first) // self.length for first, last in self._spans.values()]
        if self._spans and not any(counts):
            most = max(last - first for first, last in self._spans.values())
            raise DataError(
                f"dataset {self.shards.manifest.dataset}: no shard has a block of {self.length:,} values of "
                f"{self.column} in this split, expected one at least (the most that a shard has are {most:,}); use "
                "shorter blocks, or cut the dataset into fewer shards"
            )
        return tuple(Piece(shard, 0, n) for shard, n in zip(self._spans, counts, strict=True))

    @property
    def counted(self) -> tuple[str, ...]:
        """None: each batch has as many values."""
        return ()

    @cached_property
    def waste(self) -> float:
        """Share of the split's values that no block holds, 0 to 1."""
        values = sum(last - first for first, last in self._spans.values())
        return 1 - sum(p.last for p in self.pieces) * self.length / values if values else 0.0

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the rows whose values blocks have; a block may begin and end within a row."""
        return tuple(map(self._rows, pieces))

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedBlocks":
        """Return blocks of a window whose rows are in memory.

        Raises:
            DataError: the shard's offsets do not rise, or are others than before, or a row has
                another number of values in one of `others`.
        """
        return LoadedBlocks(self, memory, pieces)

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values of each block [n] int64, which is the same for all."""
        return np.full(sum(piece.last - piece.first for piece in pieces), self.length)

    def values(self, piece: Piece) -> tuple[int, int]:
        """Return which values [first, last) of its shard some blocks have."""
        first = self._spans[piece.shard][0]
        return first + piece.first * self.length, first + piece.last * self.length

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """By shard, the values [first, last) of the split's rows."""
        return value_spans(self.shards, self.column, self.split)

    @cached_property
    def _split_of(self) -> dict[int, tuple[Piece, Piece]]:
        """By shard, the rows of the split and their blocks."""
        rows = {piece.shard: piece for piece in self.split}
        return {piece.shard: (rows[piece.shard], piece) for piece in self.pieces}

    def _rows(self, piece: Piece) -> Piece:
        first, last = self.values(piece)
        of_split, whole = self._split_of[piece.shard]
        if piece == whole:
            return of_split
        with self.shards.opened(piece.shard) as file:
            begin = max(self._search(file, of_split, first + 1) - 1, of_split.first)
            end = max(self._search(file, of_split, last), begin + 1)
        return Piece(piece.shard, begin, end)

    def _search(self, file: int, rows: Piece, value: int) -> int:
        """Return the first row of some whose offset is at least `value`, or the one behind them.

        Of a million rows twenty offsets are read.
        """
        low, high = rows.first, rows.last
        while low < high:
            middle = (low + high) // 2
            if (
                self.shards.read(file, self.column + OFFSETS, rows.shard, middle, middle + 1)
                < value
            ):
                low = middle + 1
            else:
                high = middle
        return low


class LoadedBlocks:
    """Blocks in memory, each read where it lies."""

    def __init__(self, units: BlockUnits, memory: WindowMap, pieces: Sequence[Piece]) -> None:
        self._units, self._memory, self._pieces = units, memory, pieces
        self._columns = units.stored
        starts = {name: [np.empty(0, np.int64)] for name in self._columns}
        for piece, rows in zip(pieces, units.rows(pieces), strict=True):
            begins, lengths = begins_of(units.shards, memory, rows, units.column, units.others)
            first = self._first_value(piece, int(begins[units.column][0]), int(lengths.sum()))
            wanted = np.arange(piece.last - piece.first) * units.length + first
            for name, column in self._columns.items():
                starts[name].append(begins[name][0] + wanted * column.item_bytes)
        self._starts = {name: np.concatenate(of) for name, of in starts.items()}

    def _first_value(self, piece: Piece, begin: int, number: int) -> int:
        """Return the first value of some blocks, counted from that of the first row in memory.

        Args:
            begin: where the column's values of the rows in memory begin.
            number: of values that these have.
        """
        units, (first, last) = self._units, self._units.values(piece)
        size = self._columns[units.column].item_bytes
        skipped = (self._memory.start(units.column, piece.shard, first) - begin) // size
        if not 0 <= skipped <= skipped + last - first <= number:
            raise units.shards.bad_offsets(units.column, piece.shard)
        return skipped

    @property
    def ids(self) -> np.ndarray:
        """Ids of blocks [n] int64."""
        return unit_ids(self._pieces)

    def sample(self, place: int) -> Sample:
        """Return a block, read-only."""
        return {
            name: self._memory.row(name, int(starts[place]), self._units.length)
            for name, starts in self._starts.items()
        }

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return blocks [n, length, *shape], each column copied in one call."""
        batch = {}
        for name, column in self._columns.items():
            out = np.empty((len(places), self._units.length, *column.shape), column.dtype)
            self._memory.gather_bytes(self._starts[name][places], out)
            batch[name] = out
        return batch


def begins_of(
    shards: ShardMap, memory: WindowMap, rows: Piece, column: str, others: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return where the values of rows in memory begin [n], by column, and how many they are [n].

    Raises:
        DataError: a row has another number of values in one of `others` than in `column`.
    """
    begins, lengths = memory.ragged(column, [rows])
    found = {column: begins}
    for name in others:
        found[name], sizes = memory.ragged(name, [rows])
        differing = np.flatnonzero(sizes != lengths)
        if len(differing):
            row = int(differing[0])
            raise DataError(
                f"row {rows.first + row:,} of shard {shards.path(rows.shard)} has {sizes[row]:,} values of {name}, "
                f"expected {lengths[row]:,} as of {column}, by whose lengths rows are packed; leave {name} out of "
                "data.pack.with, or give rows as many values of both"
            )
    return found, lengths


def unit_ids(pieces: Iterable[Piece]) -> np.ndarray:
    """Return ids of units that are numbered within each shard: shard << 32 | unit [n] int64."""
    ids = [piece.shard << 32 | np.arange(piece.first, piece.last) for piece in pieces]
    return np.concatenate([np.empty(0, np.int64), *ids])


def value_spans(shards: ShardMap, name: str, split: Sequence[Piece]) -> dict[int, tuple[int, int]]:
    """Return by shard which values [first, last) of a varying column the rows of a split have.

    Those of the shard's first and last row are known from the manifest; no file is opened for them.

    Raises:
        DataError: a shard cannot be read, or its offsets do not rise within the column's values.
    """
    filled = [piece for piece in split if piece.first < piece.last]
    chunks = [filled[first : first + _CHUNK] for first in range(0, len(filled), _CHUNK)]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="offsets") as readers:
        spans = readers.map(lambda chunk: [_value_span(shards, name, p) for p in chunk], chunks)
        return {piece.shard: span for piece, span in zip(filled, chain(*spans), strict=True)}


def _value_span(shards: ShardMap, name: str, piece: Piece) -> tuple[int, int]:
    shapes = shards.layout(piece.shard).shapes
    total, num_rows = shapes[name][0], shapes[name + OFFSETS][0] - 1
    known = {0: 0, num_rows: total}
    if wanted := {piece.first, piece.last} - known.keys():
        with shards.opened(piece.shard) as file:
            for row in wanted:
                known[row] = int(shards.read(file, name + OFFSETS, piece.shard, row, row + 1)[0])
    first, last = known[piece.first], known[piece.last]
    if not 0 <= first <= last <= total:
        raise shards.bad_offsets(name, piece.shard)
    return first, last
