"""WebDataset: one tar file a shard, one member a row, read through a shuffle buffer."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import webdataset
from benchmarks.reader.task import Batch, Rows, Task

BUFFER_ROWS = 1000


def write(shards: Iterable[Rows], folder: Path) -> None:
    """Write rows as raw bytes, the label's behind the features'.

    Two members a row, or NumPy's file format, would read two to four times slower.
    """
    for index, (features, labels) in enumerate(shards):
        # mtime: one that is no whole number costs each member a header of its own
        with webdataset.TarWriter(str(folder / f"shard-{index:05d}.tar"), mtime=0) as tar:
            for row, (x, y) in enumerate(zip(features, labels, strict=True)):
                tar.write({"__key__": f"{row:06d}", "row.bin": x.tobytes() + y.tobytes()})


def batches(task: Task) -> Iterator[Batch]:
    """Yield shuffled batches, epoch after epoch."""

    def collate(rows: list[bytes]) -> Batch:
        table = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
        features = table[:, : task.shape.row_bytes].copy().view(task.shape.dtype)
        labels = table[:, task.shape.row_bytes :].copy().view(np.int64)
        return torch.from_numpy(features), torch.from_numpy(labels[:, 0])

    paths = sorted(map(str, task.folder.glob("*.tar")))
    dataset = (
        webdataset.WebDataset(paths, shardshuffle=len(paths), nodesplitter=webdataset.split_by_node)
        .shuffle(BUFFER_ROWS)
        .map(lambda sample: sample["row.bin"])
        .batched(task.batch, collation_fn=collate, partial=False)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=task.workers)
    while True:
        yield from loader
