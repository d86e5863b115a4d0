"""WebDataset: tar files, a shuffle buffer of 1,000 samples, decoded behind it."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from benchmarks.samples.pixels import CROPS, padded
from benchmarks.samples.task import NUM_CLASSES, PHOTOS, Task, boxes_of, photo_files

BUFFER = 1000
SHARD_BYTES = 16 << 20


def write(work: str, plain: Path, folder: Path) -> None:
    """Write photos with their class, or images' boxes as raw bytes, faster than NumPy's file format."""
    with webdataset.ShardWriter(
        str(folder / "shard-%05d.tar"), maxsize=SHARD_BYTES, maxcount=2_500, mtime=0, verbose=0
    ) as tar:
        if work == PHOTOS:
            for row, path in enumerate(photo_files(plain)):
                tar.write(
                    {"__key__": f"{row:06d}", "jpg": path.read_bytes(), "cls": row % NUM_CLASSES}
                )
            return
        boxes, offsets = boxes_of(plain)
        for row, (first, last) in enumerate(itertools.pairwise(offsets)):
            tar.write({"__key__": f"{row:06d}", "boxes.bin": boxes[first:last].tobytes()})


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    paths = sorted(map(str, task.folder.glob("*.tar")))
    dataset = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(BUFFER)
    if task.work == PHOTOS:
        crop, rng = CROPS[task.options["decode"]], np.random.default_rng(0)
        dataset = dataset.map(lambda row: (crop(row["jpg"], rng), int(row["cls"])))
        dataset = dataset.batched(task.batch, collation_fn=_photos, partial=False)
    else:
        dataset = dataset.map(lambda row: np.frombuffer(row["boxes.bin"], np.float32))
        dataset = dataset.map(lambda boxes: boxes.reshape(-1, 4))
        dataset = dataset.batched(task.batch, collation_fn=padded, partial=False)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=task.workers)
    while True:
        yield from loader


def _photos(rows: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)
