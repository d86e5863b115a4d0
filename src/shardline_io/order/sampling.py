"""Which rows a step consumes: the same global batches, in the same order, at any world size.

A split is visited epoch by epoch, an epoch window by window, a window batch by
batch. The order is a function of the dataset, the seed, the epoch and the
settings named in `TrainOrder`; rank r of W takes the r-th of W equal slices of
each global batch. Nothing here opens a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from shardline_io.errors import DataError
from shardline_io.order.pieces import Line, Piece, num_rows

# 2**64 / golden ratio: its multiples modulo 2**64 lie evenly, however many (Weyl's sequence)
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Window:
    """Batches whose rows are in memory together.

    Attributes:
        pieces: the rows to be in memory, in any order.
        rows: what this rank consumes, in order, as indexes into the concatenated
            pieces [n] int64.
        bounds: batch b is rows[bounds[b]:bounds[b + 1]]; [num_batches + 1] int64.
        weights: [n] float32 where the last batch is filled up: 0 for a row that only
            fills, and for the others what makes the mean over all ranks' rows the
            mean over the real ones; None where batches are never filled up.
    """

    pieces: tuple[Piece, ...]
    rows: np.ndarray
    bounds: np.ndarray
    weights: np.ndarray | None = None


class Order(Protocol):
    """The windows of each epoch.

    Attributes:
        pieces: the split's rows in each shard.
        global_batch: samples of a step over all ranks, at most.
        window_rows: rows in memory at a time.
        num_slices: batches that a global batch is split into, over all ranks.
    """

    @property
    def pieces(self) -> tuple[Piece, ...]: ...  # noqa: D102

    @property
    def global_batch(self) -> int: ...  # noqa: D102

    @property
    def window_rows(self) -> int: ...  # noqa: D102

    @property
    def num_slices(self) -> int: ...  # noqa: D102

    def num_batches(self, epoch: int) -> int:
        """Return the batches of an epoch, for one rank."""

    def batches_per_window(self) -> int:
        """Return the batches of every window but the last, for one rank."""

    def window(self, epoch: int, index: int) -> Window:
        """Return a window."""

    def whole(self) -> Order:
        """Return the order of whole global batches, whose windows are those of the ranks together."""


def _generator(*key: object) -> np.random.Generator:
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], dtype=np.uint64)))


def permutation(num_rows: int, *key: object) -> np.ndarray:
    """Return a random order [num_rows] int64 that is a function of the key.

    Sorts random 32-bit numbers with the row in the low half, several times as
    fast as a shuffle, which jumps through memory (10 against 30 ns a row).
    """
    words = _generator(*key).integers(0, 2**64 - 1, num_rows, dtype=np.uint64, endpoint=True)
    words &= np.uint64(0xFFFFFFFF00000000)
    words |= np.arange(num_rows, dtype=np.uint64)
    words.sort()
    words &= np.uint64(0xFFFFFFFF)
    return words.view(np.int64)


@dataclass(frozen=True)
class TrainOrder:
    """The shuffled order of a train split, as one rank sees it.

    The shards are shuffled for each pass. The sequence of their rows is cut into
    `streams` equal parts, of which each global batch takes an equal share; a rank
    needs only those that its slice is taken from. The rows of a stream are
    shuffled within a window. Where rows of an epoch are dropped, the sequence
    begins at another row in each epoch, so that other rows are at the ends.

    Attributes:
        dataset_id: the dataset's id; counts by its digest, so renaming changes nothing.
        pieces: the split's rows in each shard.
        global_batch: samples of an optimiser step over all ranks.
        window_rows: rows in memory at a time, over all streams; at least one global batch.
        partition_shards: shards of an epoch, in turn; 0 for all of them.
        is_padded: fill the last partial global batch instead of dropping it.
        accumulate: parts into which a rank splits its slice.
    """

    dataset_id: str
    pieces: tuple[Piece, ...]
    global_batch: int
    seed: int
    window_rows: int
    streams: int = 1
    partition_shards: int = 0
    is_padded: bool = False
    rank: int = 0
    world_size: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        rows = sorted(piece.last - piece.first for piece in self.pieces)
        smallest = sum(rows[: len(rows) // self.num_parts])
        if smallest < (1 if self.is_padded else self.global_batch):
            over = f"the {smallest:,} train rows of {self.dataset_id}"
            if self.partition_shards:
                over += f" in a partition of data.partition_shards={self.partition_shards} shards"
            raise DataError(
                f"global_batch={self.global_batch} is more than {over}; "
                "use a smaller batch, more data, larger partitions or data.last_batch=pad"
            )

    @cached_property
    def num_parts(self) -> int:
        """Epochs that make up one pass over all shards."""
        return max(1, len(self.pieces) // self.partition_shards) if self.partition_shards else 1

    def shards(self, epoch: int) -> np.ndarray:
        """Return the shards that an epoch visits, in order."""
        turn, part = divmod(epoch, self.num_parts)
        order = permutation(len(self.pieces), self.dataset_id[-12:], self.seed, "pass", turn)
        total = len(order)
        return order[total * part // self.num_parts : total * (part + 1) // self.num_parts]

    def num_rows(self, epoch: int) -> int:
        """Return the rows that an epoch visits."""
        if self.num_parts == 1:  # asked at each window's end, where shards may be many
            return self._all_rows
        return num_rows(self.pieces[i] for i in self.shards(epoch))

    @cached_property
    def _all_rows(self) -> int:
        return num_rows(self.pieces)

    def steps(self, epoch: int) -> int:
        """Return the global batches of an epoch."""
        rows = self.num_rows(epoch)
        return -(-rows // self.global_batch) if self.is_padded else rows // self.global_batch

    def num_batches(self, epoch: int) -> int:
        """Return the batches of an epoch, for one rank: its parts of the global batches."""
        return self.steps(epoch) * self.accumulate

    def batches_per_window(self) -> int:
        """Return the batches of every window but the last, for one rank."""
        return self._steps_per_window * self.accumulate

    @property
    def _steps_per_window(self) -> int:
        return max(1, self.window_rows // self.global_batch)

    def window(self, epoch: int, index: int) -> Window:
        """Return a window: its pieces, and this rank's rows of them."""
        first = index * self._steps_per_window
        steps = min(self._steps_per_window, self.steps(epoch) - first)
        line, total = self._line(epoch), self.num_rows(epoch)
        spans = [self._rows_of(stream, first, steps, total) for stream in range(self.streams)]
        slices: list[np.ndarray] = []
        pieces = self._filler(line, spans, steps)
        for stream, low, high in self._slices():
            key = (self.dataset_id[-12:], self.seed, epoch, index, stream)
            mine = line.cut(*spans[stream])
            filled = permutation(num_rows(mine), *key)
            filled += num_rows(pieces)
            if missing := steps * self._share - len(filled):
                filled = np.concatenate([filled, np.full(missing, -1)])
            slices.append(filled.reshape(steps, self._share)[:, low:high])
            pieces += mine
        # a table of small rows has millions in a window: no copy where a rank takes all of them
        rows = (slices[0] if len(slices) == 1 else np.concatenate(slices, axis=1)).reshape(-1)
        part = self.global_batch // self.world_size // self.accumulate
        return Window(
            pieces=tuple(pieces),
            rows=np.maximum(rows, 0) if self.is_padded else rows,
            bounds=np.arange(0, len(rows) + 1, part),
            weights=self._weights(rows, epoch, first + steps) if self.is_padded else None,
        )

    def _line(self, epoch: int) -> Line:
        """Return an epoch's rows in order; they are kept, since all its windows are cut from them."""
        if epoch not in self._lines:
            self._lines.clear()
            self._lines[epoch] = self._sequence(epoch)
        return self._lines[epoch]

    @cached_property
    def _lines(self) -> dict[int, Line]:
        return {}

    def _sequence(self, epoch: int) -> Line:
        """Return an epoch's rows in order, before they are cut into streams."""
        line, total = Line([self.pieces[i] for i in self.shards(epoch)]), self.num_rows(epoch)
        if self.is_padded or total % self.global_batch == 0:
            return line
        start = int(_generator(self.dataset_id[-12:], self.seed, "start").integers(2**63)) * 2
        start = (start + epoch * _GOLDEN) % 2**64 * total >> 64
        return Line([*line.cut(start, total), *line.cut(0, start)])

    def _filler(self, line: Line, spans: Sequence[tuple[int, int]], steps: int) -> list[Piece]:
        """Return the row that fills up this rank's slices, where its own rows do not begin with it.

        A model may see it (BatchNorm does), so it is the same at any world size: the window's
        first row.
        """
        mine = [spans[stream] for stream, _, _ in self._slices()]
        first = next((low, high) for low, high in spans if low < high)
        is_short = any(high - low < steps * self._share for low, high in mine)
        return [*line.cut(first[0], first[0] + 1)] if is_short and mine[0] != first else []

    def _rows_of(self, stream: int, first: int, steps: int, total: int) -> tuple[int, int]:
        """Return where a stream's rows of some steps lie in the sequence of all rows."""
        begin, end = total * stream // self.streams, total * (stream + 1) // self.streams
        start = min(begin + first * self._share, end)
        return start, min(start + steps * self._share, end)

    def _weights(self, rows: np.ndarray, epoch: int, last_step: int) -> np.ndarray:
        weights = (rows >= 0).astype(np.float32)
        if last_step == self.steps(epoch):
            in_last = self.num_rows(epoch) - (last_step - 1) * self.global_batch
            weights[-self.global_batch // self.world_size :] *= self.global_batch / in_last
        return weights

    @property
    def _share(self) -> int:
        return self.global_batch // self.streams

    def _slices(self) -> list[tuple[int, int, int]]:
        """Return this rank's part [low, high) of each stream's share of a global batch."""
        share, mine = self._share, self.global_batch // self.world_size
        begins = [self.rank * mine - stream * share for stream in range(self.streams)]
        parts = (
            (stream, max(0, begin), min(share, begin + mine)) for stream, begin in enumerate(begins)
        )
        return [(stream, low, high) for stream, low, high in parts if low < high]

    @property
    def num_slices(self) -> int:
        """Batches that a global batch is split into, over all ranks."""
        return self.world_size * self.accumulate

    def whole(self) -> TrainOrder:
        """Return the order of whole global batches, as a single rank would see it."""
        return replace(self, rank=0, world_size=1, accumulate=1)
