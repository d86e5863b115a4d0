"""Shardline's streaming mode, shuffled in windows, with the settings that the config ships."""

from collections.abc import Iterator
from itertools import count

from benchmarks.reader.competitors.settings import WINDOW_BYTES
from benchmarks.reader.task import Batch, Task

from shardline.config.settings.run_settings import Data, RunSettings
from shardline.core.world import World
from shardline.data.datamodule import TrainLoader
from shardline.data.dataset import Dataset
from shardline_io.order.sampling import TrainOrder


def batches(task: Task) -> Iterator[Batch]:
    """Yield shuffled batches, epoch after epoch."""
    dataset, order = _open(task)
    loader = TrainLoader(dataset.stream(order, local_rank=task.rank), order)
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def boundaries(task: Task, num_batches: int) -> list[int]:
    """Return which of so many batches are the first of a window, beside the very first."""
    _, order = _open(task)
    found, start = [], 0
    for epoch in count():
        ends = start + order.num_batches(epoch)
        found += range(start, ends, order.batches_per_window())
        start = ends
        if start >= num_batches:
            break
    return [batch for batch in found[1:] if batch < num_batches]


def _open(task: Task) -> tuple[Dataset, TrainOrder]:
    dataset = Dataset(task.folder / "manifest.json", task.folder)
    world = World(
        rank=task.rank,
        local_rank=task.rank,
        world_size=task.world_size,
        local_world_size=task.world_size,
        master_addr="127.0.0.1",
        master_port=0,
        launcher="none",
    )
    return dataset, dataset.train_order(_settings(task), world)


def _settings(task: Task) -> RunSettings:
    return RunSettings(
        global_batch=task.batch * task.world_size, data=Data(window_bytes=WINDOW_BYTES)
    )
