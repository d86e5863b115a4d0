"""LitData: `StreamingDataset`, for tokens with `TokensLoader`.

Its own decoding of JPEG needs torchvision, of which there is no build for torch of CPUs on PyPI; so
photos are stored as bytes and decoded in `__getitem__`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from benchmarks.samples.pixels import CROPS
from benchmarks.samples.task import BLOCK, NUM_CLASSES, PHOTOS, Task, photo_files, tokens_of
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter

CHUNK_BYTES = 16 << 20


def write(work: str, plain: Path, folder: Path) -> None:
    """Write chunks of photos' bytes, or of tokens."""
    if work == PHOTOS:
        writer = BinaryWriter(str(folder), chunk_bytes=CHUNK_BYTES)
        for row, path in enumerate(photo_files(plain)):
            writer[row] = {"image": path.read_bytes(), "label": row % NUM_CLASSES}
    else:
        tokens = tokens_of(plain)
        item = 1024 * BLOCK
        writer = BinaryWriter(
            str(folder), chunk_size=CHUNK_BYTES // 4, item_loader=TokensLoader(block_size=BLOCK)
        )
        for row in range(len(tokens) // item):
            writer[row] = torch.from_numpy(np.array(tokens[row * item : (row + 1) * item]))
    writer.done()
    writer.merge()


class Photos(litdata.StreamingDataset):
    """Photos, each a random part."""

    def __init__(self, task: Task) -> None:
        super().__init__(str(task.folder), shuffle=True, drop_last=True)
        self._crop, self._rng = CROPS[task.options["decode"]], np.random.default_rng(0)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
        row = super().__getitem__(index)
        return self._crop(row["image"], self._rng), row["label"]


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    dataset = (
        Photos(task)
        if task.work == PHOTOS
        else litdata.StreamingDataset(
            str(task.folder),
            item_loader=TokensLoader(block_size=BLOCK),
            shuffle=True,
            drop_last=True,
        )
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=task.batch, num_workers=task.workers, drop_last=True
    )
    while True:
        yield from loader
