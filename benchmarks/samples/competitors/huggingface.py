"""Hugging Face Datasets: Arrow files, map-style and shuffled by a DataLoader, as its guides train.

For boxes and tokens `by hand` takes Arrow tables and views their memory, which needs knowledge of
Arrow's layout; they are then a stream through a shuffle buffer.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from benchmarks.samples.pixels import CROPS, crop_image, padded
from benchmarks.samples.task import (
    BLOCK,
    NUM_CLASSES,
    PHOTOS,
    TOKENS,
    Task,
    boxes_of,
    photo_files,
    tokens_of,
)
from torch.utils.data import DataLoader, default_collate

BUFFER = 10_000
_TABLE = datasets.table.InMemoryTable


def write(work: str, plain: Path, folder: Path) -> None:
    """Write Arrow files of about 16 MB."""
    datasets.disable_progress_bars()
    if work == PHOTOS:
        files = photo_files(plain)
        rows = {
            "image": [{"bytes": path.read_bytes(), "path": None} for path in files],
            "label": [row % NUM_CLASSES for row in range(len(files))],
        }
        features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
        whole = datasets.Dataset.from_dict(rows, features=features)
    elif work == TOKENS:
        tokens = tokens_of(plain)
        values = pa.array(tokens[: len(tokens) // BLOCK * BLOCK])
        column = pa.FixedSizeListArray.from_arrays(values, BLOCK)
        whole = datasets.Dataset(_TABLE(pa.table({"tokens": column})))
    else:
        boxes, offsets = boxes_of(plain)
        inner = pa.FixedSizeListArray.from_arrays(pa.array(boxes.reshape(-1)), 4)
        column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), inner)
        whole = datasets.Dataset(_TABLE(pa.table({"boxes": column})))
    whole.save_to_disk(str(folder), max_shard_size="16MB")


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    stored = datasets.load_from_disk(str(task.folder))
    if task.options.get("format") == "arrow":
        yield from _by_hand(stored, task)
    collate: Callable[[Any], Any] = default_collate
    if task.work == PHOTOS:
        stored = _photos(stored, task.options["decode"])
    elif task.work == TOKENS:
        stored = stored.with_format(task.options["format"])
    else:
        stored, collate = stored.with_format("numpy"), _boxes
    loader = DataLoader(
        stored,
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=task.workers,
    )
    while True:
        yield from loader


def _photos(stored: datasets.Dataset, decode: str) -> datasets.Dataset:
    rng = np.random.default_rng(0)

    def by_image(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": [crop_image(image, rng) for image in rows["image"]], "y": rows["label"]}

    def by_bytes(rows: dict[str, list[Any]]) -> dict[str, Any]:
        contents = [image["bytes"] for image in rows["image"]]
        return {"x": [CROPS[decode](one, rng) for one in contents], "y": rows["label"]}

    if decode == "pillow":
        return stored.with_transform(by_image)
    return stored.cast_column("image", datasets.Image(decode=False)).with_transform(by_bytes)


def _boxes(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return padded([np.asarray(row["boxes"], np.float32).reshape(-1, 4) for row in rows])


def _by_hand(stored: datasets.Dataset, task: Task) -> Iterator[Any]:
    num_shards = len(list(task.folder.glob("*.arrow")))
    stream = stored.to_iterable_dataset(num_shards=num_shards)
    stream = stream.shuffle(seed=1, buffer_size=BUFFER).with_format("arrow")
    for epoch in count():
        stream.set_epoch(epoch)
        for table in stream.iter(task.batch, drop_last_batch=True):
            column = table[task.work].combine_chunks()
            values = column.flatten()
            if task.work == TOKENS:
                yield torch.from_numpy(values.to_numpy()).view(task.batch, BLOCK)
            else:
                boxes = values.flatten().to_numpy().reshape(-1, 4)
                places = column.offsets.to_numpy() - column.offsets[0].as_py()
                yield padded(np.split(boxes, places[1:-1]))
