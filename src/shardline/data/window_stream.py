"""Base class of streams: read windows ahead in their known order, and count batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from shardline_io.order.mix import MixedWindow, MixOrder
from shardline_io.order.sampling import Order, Window
from shardline_io.streams import read_ahead


class Ready(Protocol):
    """A window in memory.

    Attributes:
        window: order of this rank's units.
        ids: ids of the units that this rank consumes, in order [n] int64.
    """

    @property
    def window(self) -> Window | MixedWindow: ...  # noqa: D102

    @property
    def ids(self) -> np.ndarray: ...  # noqa: D102


_Read = TypeVar("_Read", bound=Ready)


class WindowStream(ABC, Generic[_Read]):
    """Stream of one rank's batches in a given order.

    While batches are made from the current window, one thread reads the next window, and another
    computes the order of the window after that.

    Args:
        order: order of the samples.
        num_epochs: number of visits, -1 for any number; nothing is read ahead after the last one.

    Attributes:
        position: number of the epoch's batches that were yielded or skipped.
    """

    def __init__(self, order: Order | MixOrder, num_epochs: int | None = None) -> None:
        self._order, self._num_epochs = order, num_epochs
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan-ahead")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._reading: Iterator[_Read] = iter(())
        self._next: tuple[int, int] | None = None  # epoch and index of the window read ahead
        self._given: tuple[_Read, int] | None = None  # window and index of the last batch
        self.position = 0

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """Yield an epoch's batches.

        Args:
            epoch: the epoch, from 0.
            start: number of the epoch's first batches to skip.

        Raises:
            DataError: a shard cannot be read or is damaged, or a sample cannot be transformed.
        """
        self.position = start
        yield from self._batches(self._windows(epoch, start))

    @property
    def batch_ids(self) -> np.ndarray:
        """Ids of the units in the last batch [B] int64, without padding rows."""
        return self._of_batch(lambda ready: ready.ids)

    @property
    def batch_parts(self) -> np.ndarray | None:
        """Part of each unit in the last batch [B] int64; None if rows are used as stored."""
        return None

    @property
    def batch_passes(self) -> np.ndarray | None:
        """Pass of each unit in the last batch [B] int64; None if rows are used as stored."""
        return None

    @abstractmethod
    def _plan(self, key: tuple[int, int]) -> Any:
        """Return the plan of a window for `_read`, by epoch and index."""

    @abstractmethod
    def _read(self, plan: Any) -> _Read:
        """Read a window into memory."""

    @abstractmethod
    def _batches(self, windows: Iterator[tuple[_Read, int]]) -> Iterator[Any]:
        """Yield the batches of windows after the skipped ones; set `position` and `_given` for each."""

    def _of_batch(self, column: Callable[[_Read], np.ndarray]) -> np.ndarray:
        """Return the last batch's values in a column of its window [n] int64."""
        if self._given is None:
            return np.empty(0, np.int64)
        ready, place = self._given
        window = ready.window
        rows = slice(window.bounds[place], window.bounds[place + 1])
        values = column(ready)[rows]
        return values if window.weights is None else values[window.weights[rows] > 0]

    def _windows(self, epoch: int, start: int) -> Iterator[tuple[_Read, int]]:
        """Yield an epoch's windows from batch `start` on, each with its number of batches to skip."""
        per_window = self._order.batches_per_window()
        for index in range(start // per_window, self._num_windows(epoch)):
            yield self._window((epoch, index)), max(0, start - index * per_window)

    def _window(self, key: tuple[int, int]) -> _Read:
        if self._next != key:
            plans = read_ahead(self._keys(key), self._plan, self._planner)
            self._reading = read_ahead(plans, self._read, self._reader)
        self._next = None  # after an error, reading starts again
        self._given = None  # so that the thread frees the previous window
        found = next(self._reading)
        self._next = self._after(key)
        return found

    def _keys(self, key: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
        while key is not None:
            yield key
            key = self._after(key)

    def _after(self, key: tuple[int, int]) -> tuple[int, int] | None:
        epoch, index = key
        if index + 1 < self._num_windows(epoch):
            return epoch, index + 1
        is_last = self._num_epochs is not None and 0 <= self._num_epochs <= epoch + 1
        return None if is_last or not self._num_windows(epoch + 1) else (epoch + 1, 0)

    def _num_windows(self, epoch: int) -> int:
        return -(-self._order.num_batches(epoch) // self._order.batches_per_window())
