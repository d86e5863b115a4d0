"""Planned order of samples: the row ids that each training step of a run consumes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import RunSettings
from shardline.core.world import World
from shardline.data.run_batches import RunBatches
from shardline.data.sample_stream import SampleStream
from shardline.data.window_stream import WindowStream
from shardline.data.windowmap import WindowMap
from shardline_io.order.mix import MixOrder, mixed_window
from shardline_io.order.sampling import TrainOrder

Sample = tuple[int, int, int]  # part, pass and row id, as in the ledger


class PlannedStep(NamedTuple):
    """Samples of a step, over all ranks."""

    step: int
    epoch: int
    samples: list[Sample]


def planned_steps(
    datasets: Sequence[DatasetPlace], settings: RunSettings, *, last: int
) -> Iterator[PlannedStep]:
    """Yield the steps of a training in order, from step 1 to `last`.

    Reads only row ids of the shards, and imports no code of the user.

    Raises:
        DataError: a dataset is missing or has too few rows, or a shard cannot be read.
    """
    # transforms and collation do not change the order
    data = structs.replace(settings.data, transform=None, eval_transform=None, collate=None)
    run_batches = RunBatches(
        datasets, structs.replace(settings, data=data), verify="off", with_own_transforms=False
    )
    stream, ordered = run_batches.train(
        World(
            rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="", master_port=0, launcher="none"
        )
    )  # fmt: skip
    order, step, epoch = ordered.whole(), 0, 0
    while step < last and order.num_batches(epoch):
        for index in range(-(-order.num_batches(epoch) // order.batches_per_window())):
            for samples in _batches(run_batches, stream, order, epoch, index):
                step += 1
                yield PlannedStep(step, epoch, samples)
                if step == last:
                    return
        epoch += 1


def _batches(
    run_batches: RunBatches,
    stream: WindowStream[Any],
    order: TrainOrder | MixOrder,
    epoch: int,
    index: int,
) -> Iterator[list[Sample]]:
    if isinstance(stream, SampleStream):
        mixed = mixed_window(order, epoch, index, [part.units.pieces for part in stream.parts])
        ids = np.empty(len(mixed.unit), np.int64)
        for number, (part, pieces) in enumerate(zip(stream.parts, mixed.pieces, strict=True)):
            if pieces:
                rows = WindowMap(part.shards, part.units.rows(pieces))
                of_part = mixed.part == number
                ids[of_part] = part.units.load(rows, pieces).ids[mixed.unit[of_part]]
        parts, passes, bounds, weights = mixed.part, mixed.passes, mixed.bounds, mixed.weights
    else:
        assert isinstance(order, TrainOrder)  # a mix is streamed sample by sample
        window = order.window(epoch, index)
        ids = run_batches.datasets[0].shards.ids(window.pieces)[window.rows]
        parts, passes = np.zeros_like(ids), np.full_like(ids, epoch // order.num_parts)
        bounds, weights = window.bounds, window.weights
    is_row = np.ones(len(ids), bool) if weights is None else weights > 0
    for first, end in pairwise(bounds.tolist()):
        chosen = np.flatnonzero(is_row[first:end]) + first
        columns = (parts[chosen], passes[chosen], ids[chosen])
        yield list(zip(*(column.tolist() for column in columns), strict=True))
