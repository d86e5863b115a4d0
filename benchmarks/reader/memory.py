"""The memory of a process that trains through more data than it may hold."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from benchmarks.reader.task import Batch, Task

_FIELDS = re.compile(r"^(RssAnon|RssFile|RssShmem):\s+(\d+) kB$", re.MULTILINE)


def train(
    stream: Iterator[Batch], task: Task, num_batches: int, boundaries: Sequence[int]
) -> list[dict[str, int]]:
    """Train logistic regression; return the memory before, at each boundary, and at the end.

    Returns:
        Bytes by kind: anonymous (the process's own), of mapped files (the page
        cache's, given back on demand), and shared.
    """
    model = torch.nn.Linear(task.shape.features, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    samples, marks = [resident()], set(boundaries)
    for index, (features, labels) in enumerate(islice(stream, num_batches)):
        if index in marks:
            samples.append(resident())
        loss = torch.nn.functional.cross_entropy(model(features.float()), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return [*samples, resident()]


def resident() -> dict[str, int]:
    """Return the memory of this process in bytes, by kind."""
    status = Path("/proc/self/status").read_text()
    return {name: int(kilobytes) * 1024 for name, kilobytes in _FIELDS.findall(status)}
