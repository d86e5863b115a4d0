"""The process of one rank of one competitor: it opens a stream and takes batches on command.

Commands and replies are lines of JSON on standard input and output. Everything
that libraries print goes to standard error.
"""

import argparse
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from ctypes import c_ubyte
from itertools import islice
from pathlib import Path
from typing import IO, Any

import torch
from benchmarks.reader import memory, stall
from benchmarks.reader.rows import read_rows
from benchmarks.reader.task import SHAPES, Batch, Task


class Worker:
    """One rank of one competitor.

    Args:
        module: name of its module in `competitors`.
    """

    def __init__(self, module: str) -> None:
        self._module = importlib.import_module(f"benchmarks.reader.competitors.{module}")
        self._task: Task
        self._stream: Iterator[Batch]

    def write(self, source: str, folder: str) -> dict[str, Any]:
        """Store the rows of a sealed dataset in the competitor's format."""
        self._module.write(read_rows(Path(source)), Path(folder))
        return {}

    def open(self, folder: str, shape: str, **task: Any) -> dict[str, Any]:
        """Begin a stream; an earlier one is closed first."""
        self.close()
        self._task = Task(folder=Path(folder), shape=SHAPES[shape], **task)
        self._stream = self._module.batches(self._task)
        return {}

    def close(self) -> dict[str, Any]:
        """Close the stream."""
        self._stream = iter(())
        gc.collect()
        return {}

    def take(self, num_batches: int, untimed: int = 0) -> dict[str, Any]:
        """Take batches, looking at one element of each, and time it.

        Args:
            untimed: batches taken before, so that what was read ahead in a
                competitor's pause does not count as its speed.
        """
        for _ in islice(self._stream, untimed):
            pass
        start = time.perf_counter()
        for features, _labels in islice(self._stream, num_batches):
            c_ubyte.from_address(features.data_ptr()).value  # noqa: B018
        elapsed = time.perf_counter() - start
        self._check(features, _labels)
        return {"rows": num_batches * self._task.batch, "seconds": elapsed}

    def take_for(self, seconds: float, max_rows: int) -> dict[str, Any]:
        """Take batches for so long or until there are so many rows, the opening included."""
        rows, elapsed, start = 0, 0.0, time.perf_counter()
        while elapsed < seconds and rows < max_rows:
            features, _labels = next(self._stream)
            c_ubyte.from_address(features.data_ptr()).value  # noqa: B018
            rows += len(features)
            elapsed = time.perf_counter() - start
        return {"rows": rows, "seconds": elapsed}

    def trace(self, num_batches: int, step: str) -> dict[str, Any]:
        """Train with steps of at least 5 ms and return the wait for each batch."""
        times = stall.trace(self._stream, num_batches, step)
        return {**times, "boundaries": self._module.boundaries(self._task, num_batches)}

    def train(self, num_batches: int) -> dict[str, Any]:
        """Train a small model and return the memory in use at each boundary."""
        boundaries = self._module.boundaries(self._task, num_batches)
        return {"samples": memory.train(self._stream, self._task, num_batches, boundaries)}

    def _check(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        expected = (self._task.batch, self._task.shape.features)
        if tuple(features.shape) != expected or labels.shape != features.shape[:1]:
            raise RuntimeError(f"features {tuple(features.shape)}, expected {expected}")


def serve(worker: Worker, replies: IO[str]) -> None:
    """Answer commands until there are none; an error ends the process, its text the last reply."""
    try:
        for line in sys.stdin:
            command = json.loads(line)
            reply = getattr(worker, command.pop("do"))(**command)
            print(json.dumps(reply), file=replies, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        os._exit(1)  # threads and data loading processes of a peer may never end by themselves
    worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--store", help="file of the ranks' rendezvous")
    arguments = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(
        1
    )  # as torchrun does; a second one makes no competitor faster and some slower
    if arguments.world_size > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{arguments.store}",
            rank=arguments.rank,
            world_size=arguments.world_size,
        )
    serve(Worker(arguments.module), replies)


if __name__ == "__main__":
    main()
