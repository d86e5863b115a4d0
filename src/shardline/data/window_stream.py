"""What streams share: windows are read ahead in an order that is known in advance, and batches are counted."""

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
        window: what it has for this rank.
        ids: of the units that this rank consumes, in order [n] int64.
    """

    @property
    def window(self) -> Window | MixedWindow: ...  # noqa: D102

    @property
    def ids(self) -> np.ndarray: ...  # noqa: D102


_Read = TypeVar("_Read", bound=Ready)


class WindowStream(ABC, Generic[_Read]):
    """Streams batches of an order to one rank.

    One thread finds out what the window after the next has, another reads the next one, while
    batches are made of the present one.

    Args:
        order: which samples, in which order.
        num_epochs: visits after which nothing is read ahead.

    Attributes:
        position: the epoch's batches that were given or left out.
    """

    def __init__(self, order: Order | MixOrder, num_epochs: int | None = None) -> None:
        self._order, self._num_epochs = order, num_epochs
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan-ahead")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._reading: Iterator[_Read] = iter(())
        self._next: tuple[int, int] | None = None  # epoch and index of the window read ahead
        self._given: tuple[_Read, int] | None = None  # the last batch: its window, its place there
        self.position = 0

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """Yield an epoch's batches.

        Args:
            start: batches of the epoch to leave out.

        Raises:
            DataError: a shard cannot be read or is damaged, or a sample cannot be transformed.
        """
        self.position = start
        yield from self._batches(self._windows(epoch, start))

    @property
    def batch_ids(self) -> np.ndarray:
        """Ids [B] int64 of the units of the batch given last, without those that only fill it up."""
        return self._of_batch(lambda ready: ready.ids)

    @property
    def batch_parts(self) -> np.ndarray | None:
        """The part of each unit of the batch given last [B] int64; None where rows come as they are stored."""
        return None

    @property
    def batch_passes(self) -> np.ndarray | None:
        """The pass of each unit of the batch given last [B] int64; None where rows come as they are stored."""
        return None

    @abstractmethod
    def _plan(self, key: tuple[int, int]) -> Any:
        """Return what `_read` needs of a window, by its epoch and index."""

    @abstractmethod
    def _read(self, plan: Any) -> _Read:
        """Bring a window into memory."""

    @abstractmethod
    def _batches(self, windows: Iterator[tuple[_Read, int]]) -> Iterator[Any]:
        """Yield the batches of windows, each without its first ones; note `position` and `_given` of each."""

    def _of_batch(self, column: Callable[[_Read], np.ndarray]) -> np.ndarray:
        """Return what the batch given last has of a window's column [n] int64."""
        if self._given is None:
            return np.empty(0, np.int64)
        ready, place = self._given
        window = ready.window
        rows = slice(window.bounds[place], window.bounds[place + 1])
        values = column(ready)[rows]
        return values if window.weights is None else values[window.weights[rows] > 0]

    def _windows(self, epoch: int, start: int) -> Iterator[tuple[_Read, int]]:
        """Yield each window that an epoch has from a batch on, and how many of its batches come before that."""
        per_window = self._order.batches_per_window()
        for index in range(start // per_window, self._num_windows(epoch)):
            yield self._window((epoch, index)), max(0, start - index * per_window)

    def _window(self, key: tuple[int, int]) -> _Read:
        if self._next != key:
            plans = read_ahead(self._keys(key), self._plan, self._planner)
            self._reading = read_ahead(plans, self._read, self._reader)
        self._next = None  # an error ends the reading
        self._given = None  # so that the thread has the last reference to the window before
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
        is_last = self._num_epochs is not None and epoch + 1 >= self._num_epochs
        return None if is_last else (epoch + 1, 0)

    def _num_windows(self, epoch: int) -> int:
        return -(-self._order.num_batches(epoch) // self._order.batches_per_window())
