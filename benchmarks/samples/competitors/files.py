"""torch's DataLoader over files of photos, map-style, as torchvision's `ImageFolder` has it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.samples.pixels import CROPS
from benchmarks.samples.task import NUM_CLASSES, Task, photo_files
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """The photos of a folder, each a random part."""

    def __init__(self, task: Task) -> None:
        self._files = photo_files(task.plain)
        self._crop, self._rng = CROPS[task.options["decode"]], np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._crop(self._files[index].read_bytes(), self._rng), index % NUM_CLASSES


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    loader = DataLoader(
        Photos(task),
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    while True:
        yield from loader
