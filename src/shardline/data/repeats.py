"""Check during training that transforms are reproducible: another process repeats a few samples.

This finds randomness that no sample of the check before the training triggered. The other process
has its own global generators, objects and history of samples, and returns digests to compare.
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
# In a smaller window, samples are large, or so few that the check before the training saw them all.
_SMALL_WINDOW = 100
_MOST_PENDING = 8  # each keeps its sample in memory, and Python waits for them at exit


def places_to_repeat(
    seed: int, parts: np.ndarray, passes: np.ndarray, ids: np.ndarray, epoch: int
) -> np.ndarray:
    """Return the indices of a window's samples that are transformed twice, ascending.

    Selects one sample in 1,000, but at least one in a window of 100 or more, as a function of the
    arguments.

    Args:
        seed: seed of the run.
        parts: key of each sample's dataset [n] uint64.
        passes: pass that each sample belongs to [n].
        ids: row id of each sample [n].
        epoch: epoch of the window, so that validations of the same samples select different ones.
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
    """Mix the bits of each word (last steps of splitmix64, Steele et al. 2014)."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = word ^ (word >> np.uint64(31))
    return mixed


class Repeater:
    """Process that transforms samples a second time for the streams of one rank.

    The process starts with the first sample. It ends with this object and with this process.

    Args:
        tell: function that prints a warning if the process has ended early.
    """

    def __init__(self, tell: Callable[[str], None] = print) -> None:
        self._tell, self._has_ended = tell, False
        self._processes: list[WorkerProcess] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="repeat")
        weakref.finalize(self, _close, self._thread, self._processes)

    def submit(self, spec: TransformSpec, key: Key, sample: Sample, found: bytes) -> Future[str]:
        """Start to transform a sample again.

        Args:
            found: digest of the transform's result in this process.

        Returns:
            Description of a difference; empty if the digests are equal.
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
            return f"{failed.error} (in another process, but not in this one)"
        except DataError:
            self._has_ended = True
            self._tell(
                f"warning: process {process.pid} has ended, which repeated {spec.what} for some samples; from now on, "
                "randomness in the transform is not detected"
            )
            return ""
        moved = (one[0] for one, two in zip(traced, again, strict=True) if one[2] != two[2])
        step = next(moved, " or ".join(one[0] for one in traced))
        return (
            f"{step} gives two results for one sample and equal generators, the second in another process with "
            "other global random states"
        )


class Repeats:
    """Repeated transforms of some samples of a stream; rejects a transform with two results.

    Args:
        repeater: process that repeats the transforms.
        spec: the transform.
        where: function that describes the sample of a key in messages.
    """

    def __init__(self, repeater: Repeater, spec: TransformSpec, where: Where) -> None:
        self._repeater, self._spec, self._where = repeater, spec, where
        self._pending: deque[tuple[Key, Future[str]]] = deque()

    def check(self, key: Key, sample: Sample, result: Sample) -> None:
        """Start to transform a sample again, and evaluate earlier samples.

        Args:
            key: key of the sample's random numbers.
            sample: sample before the transform.
            result: result of the transform in this process.

        Raises:
            ConfigError: an earlier sample has two results; names the sample and the step.
        """
        found = digest_of(result)  # now, since the training may change the result
        self._pending.append((key, self._repeater.submit(self._spec, key, sample, found)))
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0][1].done()):
            self._next()

    def settle(self) -> None:
        """Wait for all started samples.

        Raises:
            ConfigError: a sample has two results.
        """
        while self._pending:
            self._next()

    def _next(self) -> None:
        key, future = self._pending.popleft()
        if wrong := future.result():
            raise refusal(self._spec, self._where(key), wrong)


@dataclass(frozen=True)
class _Tracer:
    """Spec for the other process: traces samples by the transform that is sent with each."""

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
