"""MosaicML Streaming: MDS shards, `StreamingDataset` with its default shuffle `py1e`."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from benchmarks.reader.task import Batch, Rows, Task

# `import streaming` imports its ready-made image and text datasets, and with them
# torchvision and transformers, which nothing here uses
for _name in ("multimodal", "text", "vision"):
    sys.modules[f"streaming.{_name}"] = ModuleType(f"streaming.{_name}")

import streaming  # noqa: E402


def write(shards: Iterable[Rows], folder: Path) -> None:
    """Write samples {"x": features, "y": label}."""
    writer = None
    for features, labels in shards:
        columns = {"x": f"ndarray:{features.dtype}:{features.shape[1]}", "y": "int"}
        writer = writer or streaming.MDSWriter(
            out=str(folder), columns=columns, size_limit=features.nbytes + 64 * len(labels)
        )
        for x, y in zip(features, labels.tolist(), strict=True):
            writer.write({"x": x, "y": y})
    writer.finish()


def batches(task: Task) -> Iterator[Batch]:
    """Yield shuffled batches, epoch after epoch."""
    dataset = streaming.StreamingDataset(
        local=str(task.folder), shuffle=True, batch_size=task.batch
    )
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=task.batch, num_workers=task.workers, drop_last=True
    )
    while True:
        for batch in loader:
            yield batch["x"], batch["y"]
