"""LitData: one chunk a shard, `StreamingDataset` and `StreamingDataLoader`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import litdata
import torch
from benchmarks.reader.task import Batch, Rows, Task
from litdata.streaming.writer import BinaryWriter


def write(shards: Iterable[Rows], folder: Path) -> None:
    """Write items {"x": features, "y": label}."""
    writer, row = None, 0
    for features, labels in shards:
        writer = writer or BinaryWriter(str(folder), chunk_size=len(labels))
        for x, y in zip(torch.from_numpy(features), labels.tolist(), strict=True):
            writer[row] = {"x": x, "y": y}
            row += 1
    writer.done()
    writer.merge()


def batches(task: Task) -> Iterator[Batch]:
    """Yield shuffled batches, epoch after epoch.

    `batch_decode` counts: left at its default, each row decodes 256 others.
    """
    dataset = litdata.StreamingDataset(
        str(task.folder), shuffle=True, drop_last=True, batch_decode=task.options["batch_decode"]
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=task.batch, num_workers=task.workers, drop_last=True
    )
    while True:
        for batch in loader:
            yield batch["x"], batch["y"]
