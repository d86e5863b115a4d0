"""MosaicML Streaming: MDS shards of blocks, `StreamingDataset` with its default shuffle `py1e`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reader.competitors.mosaicml import streaming
from benchmarks.samples.task import BLOCK, Task, tokens_of


def write(work: str, plain: Path, folder: Path) -> None:
    """Write blocks of tokens; that they are of one length is stored once."""
    tokens = tokens_of(plain)
    columns = {"tokens": f"ndarray:int32:{BLOCK}"}
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for first in range(0, len(tokens) - BLOCK + 1, BLOCK):
            writer.write({"tokens": tokens[first : first + BLOCK]})


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    dataset = streaming.StreamingDataset(
        local=str(task.folder), shuffle=True, batch_size=task.batch
    )
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=task.batch, num_workers=task.workers, drop_last=True
    )
    while True:
        yield from loader
