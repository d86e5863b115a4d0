"""The process of one competitor: it opens a stream and takes batches on command, see `reader.worker`."""

import argparse
import gc
import importlib
import os
import resource
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
from benchmarks.reader import stall
from benchmarks.reader.worker import serve
from benchmarks.samples.task import Task

_READ_BYTES = 4 << 20


class Worker:
    """A competitor.

    Args:
        module: name of its module in `competitors`.
    """

    def __init__(self, module: str) -> None:
        self._module = importlib.import_module(f"benchmarks.samples.competitors.{module}")
        self._task: Task
        self._stream: Iterator[Any] = iter(())

    def write(self, work: str, plain: str, folder: str) -> dict[str, Any]:
        """Store plain files in the competitor's format."""
        self._module.write(work, Path(plain), Path(folder))
        return {}

    def open(self, work: str, folder: str, plain: str, options: dict[str, Any]) -> dict[str, Any]:
        """Begin a stream; an earlier one is closed first."""
        self.close()
        self._task = Task(work=work, folder=Path(folder), plain=Path(plain), options=options)
        self._stream = self._module.batches(self._task)
        return {}

    def close(self) -> dict[str, Any]:
        """Close the stream."""
        self._stream = iter(())
        gc.collect()
        return {}

    def take(self, num_batches: int, untimed: int = 0) -> dict[str, Any]:
        """Take batches, and return the seconds by the clock and those of CPU time.

        Args:
            untimed: batches taken before, so that what was read ahead in a competitor's pause does
                not count as its speed.
        """
        for _ in islice(self._stream, untimed):
            pass
        start, before = time.perf_counter(), _cpu_s()
        for _ in islice(self._stream, num_batches):
            pass
        elapsed, used = time.perf_counter() - start, _cpu_s() - before
        return {
            "samples": num_batches * self._task.batch,
            "seconds": elapsed,
            "cpu_s": used,
        }

    def trace(self, num_batches: int, step: str) -> dict[str, Any]:
        """Train with steps of at least 5 ms and return the wait for each batch."""
        times = stall.trace(self._stream, num_batches, step)
        return {**times, "boundaries": self._module.boundaries(self._task, num_batches)}

    def pack(self, lengths: str, length: int, bins: int) -> dict[str, Any]:
        """Pack rows of these lengths and return how many packs there are."""
        start = time.perf_counter()
        packs = self._module.pack(Path(lengths), length, bins)
        return {"packs": packs, "seconds": time.perf_counter() - start}

    def read(self, folder: str) -> dict[str, Any]:
        """Read the shards of a folder alone, from first byte to last."""
        start, buffer, total = time.perf_counter(), bytearray(_READ_BYTES), 0
        for path in sorted(Path(folder).glob("*.safetensors")):
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    total += count
        return {"bytes": total, "seconds": time.perf_counter() - start}


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it started, also of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        spent += times.user + times.system
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    module = parser.parse_known_args()[0].module
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)  # as torchrun does
    serve(Worker(module), replies)


if __name__ == "__main__":
    main()
