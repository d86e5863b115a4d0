"""Pools that transform samples in the calling thread, threads or processes, with the same result."""

import itertools
import math
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from shardline.core.errors import ConfigError, DataError
from shardline.core.machine import num_cpus
from shardline.data.transforms.repeat_check import check_samples, is_each_call_checked
from shardline.data.transforms.transform_steps import (
    Sample,
    Samples,
    TransformSpec,
    Where,
    transform_all,
)
from shardline.data.worker_process import SampleError, WorkerProcess

AUTO, INLINE = "auto", "0"
_WRITTEN = re.compile(r"(threads:|processes:|)([1-9][0-9]{0,3})")
_MOST_THREADS = 16  # under `auto`
_CHEAP_S = 50e-6  # per sample: sending it to another thread takes as long
_WORTH = 1.2  # minimum speedup over the calling thread
_MEASURE_S = 0.2


class Pool(Protocol):
    """Pool that transforms samples.

    Attributes:
        chosen: kind and size of the pool, such as `threads:4`.
    """

    @property
    def chosen(self) -> str: ...  # noqa: D102

    def submit(self, samples: Samples) -> "Future[list[Sample]]":
        """Start to transform some samples, in order.

        Raises:
            DataError: a transform failed, see `transform_all`; raised by the future's result.
        """

    def close(self) -> None:
        """End threads and processes."""


def make_pool(
    written: str | int, spec: TransformSpec, *, where: Where, num_sharing: int = 1,
    tell: Callable[[str], None] = print,
) -> Pool:  # fmt: skip
    """Return the pool for a `data.workers` setting.

    Under `SHARDLINE_CHECK_TRANSFORMS`, always use the calling thread, which checks each call.

    Args:
        written: the setting `data.workers`: `auto`, 0 (the calling thread), a number of threads,
            `threads:n` or `processes:n`.
        where: function that describes the sample of a key, such as "dataset web-12ab: row id 7".
        num_sharing: number of ranks that share this machine's CPU cores, for `auto`.
        tell: function that prints what `auto` chose.

    Raises:
        ConfigError: the setting is invalid, or the transform cannot be created.
    """
    kind, number = parse_workers(written)
    if kind == INLINE or is_each_call_checked():
        return InlinePool(spec, where)
    most = max(1, min(num_cpus() // num_sharing, _MOST_THREADS))
    if spec.draws_from_globals and kind != "processes":
        kind, number = "processes", number or most
        tell(
            f"data.workers={written} uses processes:{number}, since transforms that draw from global generators cannot "
            "share a process"
        )
    if kind == "threads":
        return ThreadPool(spec, where, number)
    if kind == "processes":
        return ProcessPool(spec, where, number)
    return AutoPool(spec, where, most, tell)


def parse_workers(written: str | int) -> tuple[str, int]:
    """Return the kind of pool in `data.workers`, and its size.

    Raises:
        ConfigError: the setting is invalid.
    """
    text = str(written)
    if text in (AUTO, INLINE):
        return text, 0
    found = _WRITTEN.fullmatch(text)
    if not found:
        raise ConfigError(
            f"data.workers={written!r} is not a kind of workers, expected {AUTO}, 0, a number of threads, threads:n "
            f"or processes:n with n from 1 to 9999; use {AUTO} if in doubt"
        )
    return found[1].rstrip(":") or "threads", int(found[2])


class InlinePool:
    """Pool of the calling thread alone."""

    chosen = INLINE

    def __init__(self, spec: TransformSpec, where: Where) -> None:
        self._spec, self._where, self._steps = spec, where, spec.make()

    def submit(self, samples: Samples) -> "Future[list[Sample]]":
        """Transform some samples."""
        done: Future[list[Sample]] = Future()
        try:
            if is_each_call_checked():
                check_samples(self._spec, samples, self._where)
            done.set_result(transform_all(self._steps, samples, self._where))
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Do nothing."""


class _SplitPool:
    """Pool that splits samples evenly over threads of this process."""

    def __init__(self, kind: str, number: int, where: Where) -> None:
        self.chosen, self._number, self._where = f"{kind}:{number}", number, where
        self._threads = ThreadPoolExecutor(number, thread_name_prefix="transform")

    def submit(self, samples: Samples) -> "Future[list[Sample]]":
        """Start to transform some samples."""
        size = max(1, math.ceil(len(samples) / self._number))
        return _joined(
            [
                self._threads.submit(self._transform, samples[first : first + size])
                for first in range(0, len(samples), size)
            ]
        )

    def _transform(self, samples: Samples) -> list[Sample]:
        raise NotImplementedError

    def close(self) -> None:
        """End the threads, and cancel work that has not started."""
        self._threads.shutdown(cancel_futures=True)


class ThreadPool(_SplitPool):
    """Pool of threads, each with its own transform."""

    def __init__(self, spec: TransformSpec, where: Where, number: int) -> None:
        spec.make()  # raises errors of the setting now
        super().__init__("threads", number, where)
        self._spec, self._own = spec, threading.local()

    def _transform(self, samples: Samples) -> list[Sample]:
        if not hasattr(self._own, "steps"):
            self._own.steps = self._spec.make()
        return transform_all(self._own.steps, samples, self._where)


class ProcessPool(_SplitPool):
    """Pool of processes, each served by one thread of this process.

    The processes end with the pool, and with this process even if it crashes.
    """

    def __init__(self, spec: TransformSpec, where: Where, number: int) -> None:
        spec.make()
        super().__init__("processes", number, where)
        self.processes = [WorkerProcess(spec) for _ in range(number)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for process in self.processes:
            self._idle.put(process)
        self._end = weakref.finalize(self, _end, self.processes)

    def _transform(self, samples: Samples) -> list[Sample]:
        process = self._idle.get()
        try:
            return process.transform(samples)
        except SampleError as failed:
            where = self._where(samples[failed.place][0])
            raise type(failed.error)(f"{where}: {failed.error}") from None
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes, and cancel work that has not started."""
        super().close()
        self._end()


def _end(processes: Sequence[WorkerProcess]) -> None:
    for process in processes:
        process.close()


class AutoPool:
    """Pool that chooses between the calling thread and threads by measuring the first samples."""

    def __init__(
        self, spec: TransformSpec, where: Where, number: int, tell: Callable[[str], None]
    ) -> None:
        self._spec, self._where, self._number, self._tell = spec, where, number, tell
        self._inline = InlinePool(spec, where)
        self._pool: Pool | None = None

    @property
    def chosen(self) -> str:
        """Kind and size of the chosen pool; `auto` before the first samples."""
        return self._pool.chosen if self._pool else AUTO

    def submit(self, samples: Samples) -> "Future[list[Sample]]":
        """Start to transform some samples; measure and choose at the first call."""
        if self._pool is None and samples:
            with suppress(ConfigError, DataError):  # raised again with the result
                self._pool, why = self._choose(samples)
                self._tell(f"data.workers={AUTO} chose {self._pool.chosen} ({why})")
        return (self._pool or self._inline).submit(samples)

    def _choose(self, samples: Samples) -> tuple[Pool, str]:
        alone = _seconds_per_sample(self._inline, samples, 1)
        rate = f"{1 / alone:,.0f} samples/s in one thread"
        if alone < _CHEAP_S:
            return self._inline, rate
        threads = ThreadPool(self._spec, self._where, self._number)
        if self._number == 1:
            return threads, f"{rate}, separate from the training's thread"
        gain = alone / _seconds_per_sample(threads, samples, self._number)
        if gain >= _WORTH:
            return threads, f"{gain:.1f} times as fast as one thread; {rate}"
        threads.close()
        return self._inline, (
            f"{self._number} threads are {gain:.1f} times as fast as one, since the transform does not release "
            f"Python's interpreter lock; {rate}; if that is too slow, use processes:n"
        )

    def close(self) -> None:
        """End the threads."""
        if self._pool:
            self._pool.close()


def _seconds_per_sample(pool: Pool, samples: Samples, number: int) -> float:
    """Return the time per sample if `number` samples are transformed at once."""
    few = list(itertools.islice(itertools.cycle(samples), number))
    pool.submit(few).result()  # warm up: imports, and one transform per thread
    count, begin = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - begin < _MEASURE_S:
        pool.submit(few).result()
        count += number
    return (time.perf_counter() - begin) / count


def _joined(parts: Sequence["Future[list[Sample]]"]) -> "Future[list[Sample]]":
    """Return the concatenated results of parts, or the first error; cancellation cancels the parts."""
    done: Future[list[Sample]] = Future()
    lock, left = threading.Lock(), len(parts)

    def finish(_: object = None) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left > 0:
                return
        if done.set_running_or_notify_cancel():
            try:
                done.set_result([sample for part in parts for sample in part.result()])
            except BaseException as error:
                done.set_exception(error)

    def cancel(joined: "Future[list[Sample]]") -> None:
        if joined.cancelled():
            for part in parts:
                part.cancel()

    done.add_done_callback(cancel)
    for part in parts:
        part.add_done_callback(finish)
    if not parts:
        finish()
    return done
