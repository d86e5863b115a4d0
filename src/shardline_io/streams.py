"""Batches of stored rows, read with NumPy alone; a thread reads the next window ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Callable, Protocol, TypeVar, Union

import numpy as np

from shardline_io.column_names import IDS, LENGTHS, MEAN_COUNT, PRESENT, WEIGHT, WEIGHTS
from shardline_io.order.global_batch import Counted
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import TrainOrder, Window
from shardline_io.preprocessing import Preprocessor
from shardline_io.shards import Shards

Order = Union[TrainOrder, HeldOutOrder]
Visits = Iterable[tuple[int, int]]  # epoch, and how many of its first batches to skip
_Read = TypeVar("_Read")


class Batch(dict[str, Any]):
    """One batch of this rank: NumPy arrays [B, *shape] by column name.

    A column of varying length is padded with zeros to the longest row of the global batch:
    [B, longest, *shape]. Next to it are `{name}.lengths` [B] int64 and `{name}.mean_count`: the values
    in the global batch, divided by the number of batches that it is split into. Columns of bytes and
    text are lists of length B. An optional column has `{name}.present` [B] bool. Under
    `data.last_batch=pad` there is `weights` [B] float32: multiply each row's loss by its weight. Next to
    the column `weight` of a dataset whose rows have weights is `weight.mean_count`, their sum in the global
    batch, divided likewise.

    Attributes:
        step: optimiser step that the batch belongs to, from 1; 0 for held-out rows.
        epoch: epoch of the batch, from 0.
        ends_step: whether this is the last of the step's `trainer.accumulate` batches.
        ids: row ids [B] int64, without padding rows.
        parts: index of each row's dataset or class in the mix [B] int64; None for unmixed, untransformed rows.
        passes: how many passes over its part came before each row [B] int64; None where `parts` is.
        collated: result of a `data.collate` function that does not return a dict.
    """

    step: int
    epoch: int
    ends_step: bool
    ids: np.ndarray
    parts: np.ndarray | None = None
    passes: np.ndarray | None = None
    collated: Any = None


class Stream(Protocol):
    """A source of batches."""

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield the batches of some epochs, each as (epoch, index in the epoch, batch)."""


class RowStream:
    """Batches of a dataset's rows as stored, in a given order.

    Args:
        shards: shards of the dataset.
        kinds: "bytes" or "text", by name of the columns of these kinds.
        order: order of the rows.
        check: function that raises if a shard is damaged; called with each shard before it is read.
        local_rank: this rank's number on its node; the ranks of a node check different shards first.
        preprocessor: makes features of the stored columns of a preprocessed table.
        is_weighted: whether rows have weights.
    """

    def __init__(
        self, shards: Shards, kinds: dict[str, str], order: Order,
        check: Callable[[int], None] = lambda shard: None, local_rank: int = 0,
        preprocessor: Preprocessor | None = None, *, is_weighted: bool = False,
    ) -> None:  # fmt: skip
        self._shards, self._kinds, self._order = shards, kinds, order
        self._check, self._local_rank, self._preprocessor = check, local_rank, preprocessor
        self._sums = (WEIGHT,) if is_weighted else ()

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield the batches of some epochs, each as (epoch, index in the epoch, batch).

        Raises:
            DataError: a shard cannot be read, or is damaged.
        """
        for epoch, index, skipped, columns in read_ahead(self._windows(visits), self._read):
            first = index * self._order.batches_per_window()
            for place in range(skipped, columns.num_batches):
                yield epoch, first + place, columns.batch(place, self._preprocessor)

    def _windows(self, visits: Visits) -> Iterator[tuple[int, int, int]]:
        """Yield epoch and index of each window, and how many of its first batches to skip."""
        per_window = self._order.batches_per_window()
        for epoch, start in visits:
            for index in range(
                start // per_window, -(-self._order.num_batches(epoch) // per_window)
            ):
                yield epoch, index, max(0, start - index * per_window)

    def _read(self, of: tuple[int, int, int]) -> tuple[int, int, int, _Columns]:
        epoch, index, _ = of
        window = self._order.window(epoch, index)
        shards = list(dict.fromkeys(piece.shard for piece in window.pieces))
        turn = self._local_rank % max(1, len(shards))
        for shard in (*shards[turn:], *shards[:turn]):
            self._check(shard)
        return (
            *of,
            _Columns(self._shards, self._kinds, self._order, window, epoch, index, self._sums),
        )


def read_ahead(
    keys: Iterable[Any], read: Callable[[Any], _Read], reader: ThreadPoolExecutor | None = None
) -> Iterator[_Read]:
    """Yield `read(key)` for each key in order, while a thread reads the next key.

    A failed read raises its error where its result would be yielded. The thread frees the previous
    result, since unmapping a window takes milliseconds.

    Args:
        reader: thread of the caller, which stays open; by default a thread that ends with the iterator.
    """
    thread = reader or ThreadPoolExecutor(1, thread_name_prefix="shardline-io-read-ahead")
    keys = iter(keys)
    passed: list[_Read] = []
    ahead = [thread.submit(read, key) for key in islice(keys, 1)]
    try:
        while ahead:
            found = ahead.pop().result()
            thread.submit(passed.clear)
            ahead = [thread.submit(read, key) for key in islice(keys, 1)]
            passed = [found]
            yield found
    finally:
        for one in ahead:
            one.cancel()
        if not reader:
            thread.shutdown(wait=False, cancel_futures=True)


class _Columns:
    """The columns of a window's rows, in memory."""

    def __init__(
        self, shards: Shards, kinds: dict[str, str], order: Order, window: Window, epoch: int, index: int,
        sums: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._window, self._kinds = window, kinds
        pieces = list(self._window.pieces)
        self.fixed: dict[str, np.ndarray] = {}
        self.varying: dict[str, list[np.ndarray]] = {}
        self.counted: dict[str, Counted] = {}
        for name in shards.names():
            if shards.varies(name):
                self.varying[name] = shards.rows(name, pieces)
            else:
                self.fixed[name] = shards.fixed(name, pieces)
            if shards.is_optional(name):
                self.fixed[name + PRESENT] = shards.fixed(name + PRESENT, pieces)
        counted = [name for name in self.varying if name not in kinds]
        self._sums = sums
        if counted or sums:
            whole = order.whole().window(epoch, index)
            for name in sums:
                values = shards.fixed(name, list(whole.pieces)).astype(np.float64)
                self.counted[name] = Counted.of(np.take(values, whole.rows), whole, order)
            for name in counted:
                lengths = np.take(shards.lengths(name, list(whole.pieces)), whole.rows)
                self.counted[name] = Counted.of(lengths, whole, order)

    @property
    def num_batches(self) -> int:
        """Number of batches in the window."""
        return len(self._window.bounds) - 1

    def batch(self, place: int, preprocessor: Preprocessor | None) -> Batch:
        """Return batch number `place` of the window."""
        window = self._window
        span = slice(int(window.bounds[place]), int(window.bounds[place + 1]))
        rows = window.rows[span]
        found = Batch()
        for name, values in self.fixed.items():
            found[name] = np.take(values, rows, axis=0)
        ids = found.pop(IDS)
        found = Batch(preprocessor(found)) if preprocessor else found
        found.ids = ids
        for name in self._sums:
            found[name + MEAN_COUNT] = np.float32(self.counted[name].mean[place])
        for name, all_rows in self.varying.items():
            chosen = [all_rows[row] for row in rows.tolist()]
            if name in self.counted:
                found[name] = _padded(chosen, int(self.counted[name].longest[place]))
                found[name + LENGTHS] = np.array([len(row) for row in chosen], np.int64)
                found[name + MEAN_COUNT] = np.float32(self.counted[name].mean[place])
            else:
                contents = [row.tobytes() for row in chosen]
                is_text = self._kinds[name] == "text"
                found[name] = [c.decode() for c in contents] if is_text else contents
        if window.weights is not None:
            found[WEIGHTS] = window.weights[span]
            found.ids = found.ids[found[WEIGHTS] > 0]
        return found


def _padded(rows: list[np.ndarray], longest: int) -> np.ndarray:
    found = np.zeros((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return found
