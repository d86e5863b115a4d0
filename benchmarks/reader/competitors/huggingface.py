"""Hugging Face Datasets: Arrow files, streamed through a shuffle buffer.

As documented, rows are formatted as torch tensors or NumPy arrays. "By hand"
takes Arrow tables and views their memory as tensors, which needs knowledge of
Arrow's layout.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from benchmarks.reader.task import Batch, Rows, Task
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

BUFFER_ROWS = 10_000  # as fast as the default of 1,000, or faster


def write(shards: Iterable[Rows], folder: Path) -> None:
    """Write one Arrow file a shard, its features a list of fixed length."""
    datasets.disable_progress_bars()
    parts = []
    for x, y in shards:
        features = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
        table = pa.table({"x": features, "y": pa.array(y)})
        parts.append(datasets.Dataset(datasets.table.InMemoryTable(table)))
    datasets.concatenate_datasets(parts).save_to_disk(str(folder), num_shards=len(parts))


def batches(task: Task) -> Iterator[Batch]:
    """Yield shuffled batches, epoch after epoch."""
    stored = datasets.load_from_disk(str(task.folder))
    num_shards = len(list(task.folder.glob("*.arrow")))
    stream = stored.to_iterable_dataset(num_shards=num_shards).shuffle(
        seed=1, buffer_size=BUFFER_ROWS
    )
    stream = split_dataset_by_node(stream, rank=task.rank, world_size=task.world_size)
    stream = stream.with_format(task.options["format"])
    for epoch in count():
        stream.set_epoch(epoch)
        for batch in _epoch(stream, task):
            yield _tensors(batch)


def _epoch(stream: datasets.IterableDataset, task: Task) -> Iterable[Any]:
    if not task.workers:
        return stream.iter(task.batch, drop_last_batch=True)
    batched = stream.batch(task.batch, drop_last_batch=True)
    return DataLoader(batched, batch_size=None, num_workers=task.workers)


def _tensors(batch: Any) -> Batch:
    if isinstance(batch, pa.Table):
        x, y = (batch[name].combine_chunks() for name in ("x", "y"))
        return torch.from_numpy(x.flatten().to_numpy()).view(len(x), -1), torch.from_numpy(
            y.to_numpy()
        )
    return torch.as_tensor(batch["x"]), torch.as_tensor(batch["y"])
