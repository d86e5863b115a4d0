"""`concat` packing: cut the values of a column, such as a language model's documents, into blocks of one length."""

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

_READERS, _CHUNK = 16, 256  # threads, since reading an offset waits on a network file system


@dataclass(frozen=True, kw_only=True)
class PackedUnits(ABC):
    """Base class of the units that packing makes of a varying column: blocks or packs.

    Attributes:
        shards: shards of the dataset.
        split: the split's rows in each shard.
        column: column to pack; of text, its UTF-8 bytes.
        length: length of a unit, in values.
        others: further columns, packed in the same way; each row has the same number of values in all.

    Raises:
        DataError: the length is not from 1 to 2^31 - 1.
    """

    shards: ShardMap
    split: tuple[Piece, ...]
    column: str
    length: int
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.length < 2**31:
            raise DataError(
                f"dataset {self.shards.manifest.dataset}: {self.column} has pack length {self.length}, expected 1 to "
                "2,147,483,647; change data.pack.length"
            )

    @property
    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """Units of each piece of the split, numbered from 0 within each shard."""

    @cached_property
    def _by_shard(self) -> dict[int, list[tuple[Piece, int]]]:
        """Units of each piece, with the number of the piece among those that have units, by shard."""
        found: dict[int, list[tuple[Piece, int]]] = {}
        for place, units in enumerate(self.pieces):
            found.setdefault(units.shard, []).append((units, place))
        return found

    def _owner(self, piece: Piece) -> tuple[Piece, int]:
        """Return all units of the split's piece that contains some units, and the place of that piece."""
        of_shard = self._by_shard[piece.shard]
        return next((one for one in reversed(of_shard) if one[0].first <= piece.first), of_shard[0])

    @property
    def stored(self) -> Mapping[str, Column]:
        """Columns of the dataset that are packed."""
        return {name: self.shards.columns[name] for name in (self.column, *self.others)}

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of a sample."""
        return {
            name: Column(dtype=column.dtype, shape=(self.length, *column.shape))
            for name, column in self.stored.items()
        }

    @cached_property
    def unit_bytes(self) -> int:
        """Mean memory per unit, including all columns of its rows."""
        return max(1, num_rows(self.split) * self.shards.row_bytes // max(1, num_rows(self.pieces)))


@dataclass(frozen=True, kw_only=True)
class BlockUnits(PackedUnits):
    """Blocks of a varying column's values, regardless of row boundaries.

    The values of a split's rows in a shard are consecutive. Block b of a shard begins at value
    b * length; a shorter rest at the shard's end is left out. Nothing is stored: the first and last
    offset of the split's rows determine the blocks.

    A sample has [length, *shape] for `column` and each of `others`, and no other column. A block's id
    is shard << 32 | block.
    """

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Blocks of each shard, counted from 0.

        Raises:
            DataError: a shard cannot be read, its offsets contradict the manifest, or no shard has
                enough values for one block.
        """
        counts = [(last - first) // self.length for first, last in self._spans]
        if self._spans and not any(counts):
            most = max(last - first for first, last in self._spans)
            raise DataError(
                f"dataset {self.shards.manifest.dataset}: no shard has more than {most:,} values of {self.column} in "
                f"this split, expected at least data.pack.length={self.length:,} for one block; lower it, or split "
                "the dataset into fewer shards"
            )
        return numbered(self._filled, counts)

    @property
    def counted(self) -> tuple[str, ...]:
        """No column, since each batch has the same number of values."""
        return ()

    @cached_property
    def waste(self) -> float:
        """Share of the split's values that are in no block, 0 to 1."""
        values = sum(last - first for first, last in self._spans)
        return 1 - num_rows(self.pieces) * self.length / values if values else 0.0

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return the rows that blocks overlap; a block may begin and end within a row."""
        return tuple(map(self._rows, pieces))

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedBlocks":
        """Return blocks of a window whose rows are in memory.

        Raises:
            DataError: the shard's offsets do not rise or have changed, or a row has another number
                of values in one of `others`.
        """
        return LoadedBlocks(self, memory, pieces)

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values in each block [n] int64, the same for all."""
        return np.full(sum(piece.last - piece.first for piece in pieces), self.length)

    def values(self, piece: Piece) -> tuple[int, int]:
        """Return the range [first, last) of the shard's values in some blocks."""
        whole, place = self._owner(piece)
        first = self._spans[place][0] - whole.first * self.length
        return first + piece.first * self.length, first + piece.last * self.length

    @cached_property
    def _filled(self) -> list[Piece]:
        return [piece for piece in self.split if piece.first < piece.last]

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Range [first, last) of the values in each filled piece of the split."""
        return value_spans(self.shards, self.column, self._filled)

    def _rows(self, piece: Piece) -> Piece:
        first, last = self.values(piece)
        whole, place = self._owner(piece)
        of_split = self._filled[place]
        if piece == whole:
            return of_split
        with self.shards.opened(piece.shard) as file:
            begin = max(self._search(file, of_split, first + 1) - 1, of_split.first)
            end = max(self._search(file, of_split, last), begin + 1)
        return Piece(piece.shard, begin, end)

    def _search(self, file: int, rows: Piece, value: int) -> int:
        """Return the first row with an offset of at least `value`, else the end of the rows.

        A binary search: of a million rows, only twenty offsets are read.
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
    """Blocks in memory, read without a copy."""

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
        """Return the index of the first value of some blocks among the values in memory.

        Args:
            piece: the blocks.
            begin: place where the column's values in memory begin.
            number: number of values in memory.
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
    """Return the place of each row's first value by column, and each row's number of values, both [n].

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
                f"expected {lengths[row]:,} as of {column}, the column that is packed; remove {name} from "
                "data.pack.with, or give each row the same number of values in both"
            )
    return found, lengths


def unit_ids(pieces: Iterable[Piece]) -> np.ndarray:
    """Return the ids of units that are numbered within each shard: shard << 32 | unit [n] int64."""
    ids = [piece.shard << 32 | np.arange(piece.first, piece.last) for piece in pieces]
    return np.concatenate([np.empty(0, np.int64), *ids])


def numbered(split: Iterable[Piece], counts: Iterable[int]) -> tuple[Piece, ...]:
    """Return the units of each piece of a split, numbered from 0 within each shard."""
    ends: dict[int, int] = {}
    found = []
    for piece, number in zip(split, counts, strict=True):
        first = ends.get(piece.shard, 0)
        ends[piece.shard] = first + number
        found.append(Piece(piece.shard, first, first + number))
    return tuple(found)


def value_spans(shards: ShardMap, name: str, filled: Sequence[Piece]) -> list[tuple[int, int]]:
    """Return the range [first, last) of a varying column's values in each piece, which has rows.

    The first and last value of a shard are known from the manifest, without opening the file.

    Raises:
        DataError: a shard cannot be read, or its offsets do not rise within the column's values.
    """
    chunks = [filled[first : first + _CHUNK] for first in range(0, len(filled), _CHUNK)]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="offsets") as readers:
        spans = readers.map(lambda chunk: [_value_span(shards, name, p) for p in chunk], chunks)
        return [*chain(*spans)]


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
