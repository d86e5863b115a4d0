"""Processes that read rows of Python data for a job, and one that reads some rows again."""

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from shardline.core.errors import DataError
from shardline.data.python.opened import row_name
from shardline.data.python.reader import ReaderSpec
from shardline.data.sources.source import row_of
from shardline.data.worker_process import SampleError, WorkerProcess

_AHEAD = 2  # requests per process
_Request = TypeVar("_Request")
SEEDLESS = "random_split(..., generator=torch.Generator().manual_seed(0))"


class ReaderProcess(WorkerProcess):
    """Process with a reader of its own: files that the class opens are opened there."""

    setting, fewer = "source.workers", "set source.workers to fewer"

    def ask(self, request: str, argument: Any = None) -> Any:
        """Return the answer to a request.

        Raises:
            DataError: a row cannot be read, or the process has ended.
        """
        try:
            (answer,) = self.transform([(request, argument)])
        except SampleError as failed:
            raise failed.error from None
        return answer


class ReaderProcesses:
    """Several reader processes, which answer requests in order.

    Args:
        spec: the reader; each process has another seed.
        number: number of processes.
    """

    def __init__(self, spec: ReaderSpec, number: int) -> None:
        specs = (replace(spec, seed=spec.seed + place) for place in range(number))
        self.processes = [ReaderProcess(one) for one in specs]
        self._threads = ThreadPoolExecutor(number, "reader")
        self._idle: queue.SimpleQueue[ReaderProcess] = queue.SimpleQueue()
        for process in self.processes:
            self._idle.put(process)

    def map(
        self, requests: Iterable[tuple[_Request, str, list[int]]]
    ) -> Iterator[tuple[_Request, dict[str, Any]]]:
        """Yield the key and rows of each request (key, split, row numbers), in order."""
        pending: deque[tuple[_Request, Future[Any]]] = deque()
        try:
            for key, split, numbers in requests:
                pending.append((key, self._threads.submit(self._ask, split, numbers)))
                if len(pending) > _AHEAD * len(self.processes):
                    first, done = pending.popleft()
                    yield first, done.result()
            while pending:
                first, done = pending.popleft()
                yield first, done.result()
        finally:
            for _, future in pending:
                future.cancel()

    def _ask(self, split: str, numbers: list[int]) -> Any:
        process = self._idle.get()
        try:
            return process.ask("rows", (split, numbers))
        finally:
            self._idle.put(process)

    def files(self) -> dict[str, str]:
        """Return the files that the processes read and that count in no identity."""
        found: dict[str, str] = {}
        for process in self.processes:
            found |= process.ask("files")
        return found

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with ThreadPoolExecutor(len(self.processes)) as closing:
            for process in self.processes:
                closing.submit(process.close)


class Again:
    """Process with other seeds that reads some rows again, since what is stored must not have chance.

    Args:
        spec: the reader of the job.
        digests: digests of the rows of each split in the job.
        what: start of messages.
    """

    def __init__(self, spec: ReaderSpec, digests: Mapping[str, str], what: str) -> None:
        self._process = ReaderProcess(replace(spec, seed=spec.seed ^ 0x5DEECE66D))
        self._digests, self._what = digests, what

    def check_splits(self) -> None:
        """Reject splits with other rows in the other process.

        Raises:
            DataError: the rows of a split depend on chance.
        """
        check_digests(self._digests, self._process.ask("digests"), self._what, "another process")

    def check_row(self, split: str, number: int, columns: Mapping[str, Any], place: int) -> None:
        """Reject a row with another value in the other process.

        Args:
            number: number of the row in its split.
            columns: columns of a `Table`.
            place: index of the row in the columns.

        Raises:
            DataError: a column has another value.
        """
        self._compare(
            split, number, self._process.ask("rows", (split, [number])), 0, columns, place
        )

    def check_first(self, split: str, columns: Mapping[str, Any], number: int) -> None:
        """Reject first rows of an iterable split that differ in the other process."""
        found = self._process.ask("first", (split, number))
        for place in range(number):
            self._compare(split, place, found, place, columns, place)

    def _compare(
        self, split: str, number: int, found: Mapping[str, Any], at: int, columns: Mapping[str, Any], place: int
    ) -> None:  # fmt: skip
        for name, values in columns.items():
            if not _is_equal(row_of(values, place), row_of(found[name], at) if found else None):
                raise DataError(
                    f"{self._what}: {row_name(split, number)} has another value in column {name} if another process "
                    "reads it with other random seeds, expected the same: what is stored must not depend on chance; "
                    "move the augmentation to data.transform (type: callable), or draw from a generator that the "
                    "row's number seeds"
                )

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.close()


def check_digests(
    found: Mapping[str, str], others: Mapping[str, str], what: str, where: str
) -> None:
    """Reject splits whose rows differ between two processes.

    Raises:
        DataError: a split has other rows; names the split and the remedy.
    """
    for split in (*found, *others):
        if found.get(split) != others.get(split):
            raise DataError(
                f"{what}: split {split} has other rows in this job than in {where} (digest {found.get(split)} and "
                f"{others.get(split)} of Subset.indices), expected the same rows in each process; seed random_split: "
                f"{SEEDLESS}"
            )


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, np.generic) and isinstance(other, np.generic):
        return one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other)
