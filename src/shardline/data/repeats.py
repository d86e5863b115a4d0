"""A few samples of a training are transformed by another process as well, and must come out alike.

That finds chance behind a condition that no sample of the check before the training met. The
process has global generators, objects and a history of samples of its own, and disturbs no thread
of the training. It returns digests, which are compared here.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.transforms.repeat_check import Traced, digest_of, refusal, stir, trace
from shardline.data.transforms.transform_steps import Sample, TransformSpec, TransformSteps, Where
from shardline.data.worker_process import SampleError, WorkerProcess
from shardline_io.order.chance import Key

ONE_IN = 1000
# Of fewer samples one would be a load: they are large, or few enough that the check saw them all.
_SMALL_WINDOW = 100
_MOST_PENDING = 8  # each holds its sample, and an end of Python waits for them


def places_to_repeat(
    seed: int, parts: np.ndarray, passes: np.ndarray, ids: np.ndarray, epoch: int
) -> np.ndarray:
    """Return the places in a window whose samples are transformed twice, in order.

    A function of the seed, the datasets and each sample's place in the sequence. It is one sample of
    1,000, and at least one of a window of 100 or more.

    Args:
        seed: of the run.
        parts: keys of the samples' datasets [n] uint64.
        passes: which pass each sample is of [n].
        ids: of the samples [n].
        epoch: of the window, since each validation has the same samples.
    """
    if not len(ids):
        return np.empty(0, np.int64)
    word = np.full(len(ids), seed, np.uint64)
    for column in (parts, passes, ids, np.full(len(ids), epoch)):
        word = _mixed(word ^ column.astype(np.uint64))
    chosen = word < 2**64 // ONE_IN
    chosen[np.argmin(word)] |= len(ids) >= _SMALL_WINDOW
    return np.flatnonzero(chosen)


def _mixed(word: np.ndarray) -> np.ndarray:
    """Return words whose bits depend on all bits of the given ones (splitmix64's last steps, Steele et al. 2014)."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = word ^ (word >> np.uint64(31))
    return mixed


class Repeater:
    """A process that transforms samples for the streams of one rank.

    It starts with the first sample, and ends with this object, or with this process however it ends.

    Args:
        tell: is given the line that reports that the process has ended.
    """

    def __init__(self, tell: Callable[[str], None] = print) -> None:
        self._tell, self._has_ended = tell, False
        self._processes: list[WorkerProcess] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="repeat")
        weakref.finalize(self, _close, self._thread, self._processes)

    def submit(self, spec: TransformSpec, key: Key, sample: Sample, found: bytes) -> Future[str]:
        """Begin to transform a sample.

        Args:
            found: the digest of what a transform made of it here.

        Returns:
            What is wrong, in words; empty where the digest is the same.
        """
        return self._thread.submit(self._repeat, spec, key, sample, found)

    def _repeat(self, spec: TransformSpec, key: Key, sample: Sample, found: bytes) -> str:
        if self._has_ended:
            return ""
        if not self._processes:
            self._processes.append(WorkerProcess(_Tracer(_torch_threads())))
        process = self._processes[0]
        try:
            (traced,) = process.transform([(key, (spec, sample))])
            if traced[-1][2] == found:
                return ""
            (again,) = process.transform([(key, (spec, sample))])
        except SampleError as failed:
            return f"{failed.error} (in another process, and not in this one)"
        except DataError:
            self._has_ended = True
            self._tell(
                f"warning: process {process.pid} has ended, in which {spec.what} transforms some samples a second "
                "time; chance in the transform is not found from here on"
            )
            return ""
        moved = (one[0] for one, two in zip(traced, again, strict=True) if one[2] != two[2])
        step = next(moved, " or ".join(one[0] for one in traced))
        return (
            f"{step} gives two results for one sample and equal generators, the second one in another process under "
            "other global random states"
        )


class Repeats:
    """Has a stream's samples transformed again, and refuses a transform with two results.

    Args:
        repeater: where.
        spec: the transform.
        where: names the sample of a key in messages.
    """

    def __init__(self, repeater: Repeater, spec: TransformSpec, where: Where) -> None:
        self._repeater, self._spec, self._where = repeater, spec, where
        self._pending: deque[tuple[Key, Future[str]]] = deque()

    def check(self, key: Key, sample: Sample, result: Sample) -> None:
        """Have a sample transformed again, and see what became of earlier ones.

        Args:
            sample: before it was transformed.
            result: what the training got.

        Raises:
            ConfigError: an earlier sample has two results; the message names the sample and the step.
        """
        found = digest_of(result)  # now, since nothing keeps the training from changing it
        self._pending.append((key, self._repeater.submit(self._spec, key, sample, found)))
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0][1].done()):
            self._next()

    def settle(self) -> None:
        """Wait for what is under way.

        Raises:
            ConfigError: as `check`.
        """
        while self._pending:
            self._next()

    def _next(self) -> None:
        key, future = self._pending.popleft()
        if wrong := future.result():
            raise refusal(self._spec, self._where(key), wrong)


@dataclass(frozen=True)
class _Tracer:
    """Makes, in the process, what traces a sample by a transform that comes with it."""

    torch_threads: int
    what: str = "data.transform"

    def make(self) -> Callable[[Key, tuple[TransformSpec, Sample]], list[Traced]]:
        made: dict[str, TransformSteps] = {}

        def traced(key: Key, given: tuple[TransformSpec, Sample]) -> list[Traced]:
            spec, sample = given
            if repr(spec) not in made:
                made[repr(spec)] = spec.make()
                if self.torch_threads and (torch := sys.modules.get("torch")):
                    # their number changes the last bits of sums
                    torch.set_num_threads(self.torch_threads)
            stir()
            return trace(made[repr(spec)], key, sample)

        return traced


def _torch_threads() -> int:
    torch: Any = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else 0


def _close(thread: ThreadPoolExecutor, processes: Sequence[WorkerProcess]) -> None:
    thread.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        with suppress(OSError):
            process.close()
