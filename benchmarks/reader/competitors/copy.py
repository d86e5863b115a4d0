"""A limit: the rows lie in memory already and are copied, in their order, into batches."""

from collections.abc import Iterator

import torch
from benchmarks.reader.rows import read_rows
from benchmarks.reader.task import Batch, Task

_BLOCK_BYTES = 1 << 20  # copied at once, then split: calls must not be what is measured


def batches(task: Task) -> Iterator[Batch]:
    """Yield batches that are views of one buffer, filled again and again."""
    shards = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in read_rows(task.folder)]
    block = min(_BLOCK_BYTES // task.shape.row_bytes, min(len(y) for _, y in shards))
    block = max(1, block // task.batch) * task.batch
    features, labels = (torch.empty_like(column[:block]) for column in shards[0])
    views = list(zip(features.split(task.batch), labels.split(task.batch), strict=True))
    while True:
        for x, y in shards:
            for first in range(0, len(y) - block + 1, block):
                features.copy_(x[first : first + block])
                labels.copy_(y[first : first + block])
                yield from views
