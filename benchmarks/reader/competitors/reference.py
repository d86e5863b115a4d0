"""The reference design: one pickled dict for each partition, read row by row.

Every epoch each rank loads every partition again, makes a map-style dataset of
it, and lets a DistributedSampler and a DataLoader take the rank's rows.
"""

import pickle
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, count, takewhile
from pathlib import Path

import torch
from benchmarks.reader.task import Batch, Rows, Task
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Partition(Dataset):
    """The rows of one pickled dict, in memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            content = pickle.load(file)  # the reference's own choice; we wrote this file
        self._features = torch.from_numpy(content["features"])
        self._labels = torch.from_numpy(content["labels"])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        return self._features[index], self._labels[index]


def write(shards: Iterable[Rows], folder: Path) -> None:
    """Pickle each shard as a dict of arrays."""
    for index, (features, labels) in enumerate(shards):
        with (folder / f"partition-{index:05d}.pkl").open("wb") as file:
            pickle.dump({"features": features, "labels": labels}, file, protocol=5)


def batches(task: Task) -> Iterator[Batch]:
    """Yield batches, partition after partition, epoch after epoch."""
    for loader in _loaders(task):
        yield from loader


def boundaries(task: Task, num_batches: int) -> list[int]:
    """Return which of so many batches are the first of a partition, beside the very first."""
    firsts = accumulate(len(loader) for loader in _loaders(task))
    return list(takewhile(lambda first: first < num_batches, firsts))


def _loaders(task: Task) -> Iterator[DataLoader]:
    paths = sorted(task.folder.glob("*.pkl"))
    for epoch in count():
        for path in random.Random(epoch).sample(paths, len(paths)):
            partition = Partition(path)
            sampler = DistributedSampler(partition, num_replicas=task.world_size, rank=task.rank)
            sampler.set_epoch(epoch)
            yield DataLoader(
                partition,
                batch_size=task.batch,
                sampler=sampler,
                num_workers=task.workers,
                drop_last=True,
            )
