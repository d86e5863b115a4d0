"""Shardline, as a run's settings have it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from benchmarks.samples.task import BLOCK, IMAGE_SIZE, PHOTOS, TOKENS, Task

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, Pack, RunSettings, Trainer
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.data.run_batches import RunBatches

WINDOW_BYTES = 256 << 20  # the default of `data.window_bytes`


def batches(task: Task) -> Iterator[Any]:
    """Yield shuffled batches, epoch after epoch."""
    loader = ShardDataModule(_settings(task), [_place(task)], _ALONE).train_dataloader()
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def boundaries(task: Task, num_batches: int) -> list[int]:
    """Return which of so many batches are the first of a window, beside the very first."""
    _, order = RunBatches([_place(task)], _settings(task)).train(_ALONE)
    found, start = [], 0
    for epoch in count():
        ends = start + order.num_batches(epoch)
        found += range(start, ends, order.batches_per_window())
        start = ends
        if start >= num_batches:
            break
    return [batch for batch in found[1:] if batch < num_batches]


def _place(task: Task) -> DatasetPlace:
    return DatasetPlace(manifest=task.folder / "manifest.json", shards=task.folder)


def _settings(task: Task) -> RunSettings:
    data = {
        PHOTOS: {"transform": {"type": "random_resized_crop", "size": IMAGE_SIZE}},
        TOKENS: {"pack": Pack(column="tokens", length=BLOCK)},
    }.get(task.work, {})
    window_bytes = task.options.get("window_bytes", WINDOW_BYTES)
    return RunSettings(
        devices=1,
        global_batch=task.batch,
        trainer=Trainer(max_epochs=1_000_000),
        data=Data(workers=task.workers, window_bytes=window_bytes, **data),
    )


_ALONE = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    master_addr="127.0.0.1",
    master_port=0,
    launcher="none",
)
