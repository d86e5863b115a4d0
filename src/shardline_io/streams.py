"""Batches of a dataset's rows as they are stored, read by NumPy alone; a window is read ahead of its first batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Callable, Protocol, TypeVar, Union

import numpy as np

from shardline_io.column_names import IDS, LENGTHS, MEAN_COUNT, PRESENT, WEIGHTS
from shardline_io.order.global_batch import Counted
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import TrainOrder, Window
from shardline_io.shards import Shards

Order = Union[TrainOrder, HeldOutOrder]
Visits = Iterable[tuple[int, int]]  # epochs, and the batches of each to leave out
_Read = TypeVar("_Read")


class Batch(dict[str, Any]):
    """A batch by column: NumPy arrays [B, *shape], of the rows of this rank alone.

    A column whose first dimension varies is filled up with zeros to the longest row of the global
    batch, [B, longest, *shape], beside `{name}.lengths` [B] int64 and `{name}.mean_count`, the values
    of the whole global batch over the batches that it is split into; bytes and texts are lists of B.
    An optional column has `{name}.present` [B] bool beside it. Under `data.last_batch=pad` there is
    `weights` [B] float32: multiply each row's loss by its weight.

    Attributes:
        step: number of the optimiser step that the batch goes into, from 1; 0 for held-out rows.
        epoch: from 0.
        ends_step: whether the step's last part, of `trainer.accumulate`, is in it.
        ids: row ids [B] int64, without those of rows that only fill the batch up.
        parts: the place of each row among the run's datasets, or classes [B] int64, and `passes` its
            pass through that part; both None where rows come as they are stored.
        collated: what a function of `data.collate` returned, where that is no dict.
    """

    step: int
    epoch: int
    ends_step: bool
    ids: np.ndarray
    parts: np.ndarray | None = None
    passes: np.ndarray | None = None
    collated: Any = None


class Stream(Protocol):
    """What yields batches of an order."""

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield epoch, place in the epoch and batch of each."""


class RowStream:
    """The rows of a dataset as batches of an order.

    Args:
        shards: the dataset.
        kinds: of columns that vary and are no arrays, by name: bytes or text.
        order: which rows, in which order.
        check: called with each shard of a window before it is read; raises if it is damaged.
        local_rank: ranks of a node begin at different shards, so that they share the checking.
    """

    def __init__(
        self, shards: Shards, kinds: dict[str, str], order: Order,
        check: Callable[[int], None] = lambda shard: None, local_rank: int = 0,
    ) -> None:  # fmt: skip
        self._shards, self._kinds, self._order = shards, kinds, order
        self._check, self._local_rank = check, local_rank

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield epoch, place in the epoch and batch of each.

        Raises:
            DataError: a shard cannot be read, or is damaged.
        """
        for epoch, index, skipped, columns in read_ahead(self._windows(visits), self._read):
            first = index * self._order.batches_per_window()
            for place in range(skipped, columns.num_batches):
                yield epoch, first + place, columns.batch(place)

    def _windows(self, visits: Visits) -> Iterator[tuple[int, int, int]]:
        """Yield epoch and number of each window, and the batches of it to leave out."""
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
        return (*of, _Columns(self._shards, self._kinds, self._order, window, epoch, index))


def read_ahead(
    keys: Iterable[Any], read: Callable[[Any], _Read], reader: ThreadPoolExecutor | None = None
) -> Iterator[_Read]:
    """Yield what is read of each key, in their order, while a thread reads the next one.

    An error of a read is raised where its result would be yielded. What was yielded before is
    dropped by the thread before it reads on: to unmap a window takes milliseconds.

    Args:
        reader: the thread, of a caller who goes on with other keys later; one that ends with the
            iterator by default.
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
        self, shards: Shards, kinds: dict[str, str], order: Order, window: Window, epoch: int, index: int
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
        if counted:
            whole = order.whole().window(epoch, index)
            for name in counted:
                lengths = np.take(shards.lengths(name, list(whole.pieces)), whole.rows)
                self.counted[name] = Counted.of(lengths, whole, order)

    @property
    def num_batches(self) -> int:
        """Batches of the window."""
        return len(self._window.bounds) - 1

    def batch(self, place: int) -> Batch:
        """Return a batch of the window."""
        window = self._window
        span = slice(int(window.bounds[place]), int(window.bounds[place + 1]))
        rows = window.rows[span]
        found = Batch()
        for name, values in self.fixed.items():
            found[name] = np.take(values, rows, axis=0)
        found.ids = found.pop(IDS)
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
