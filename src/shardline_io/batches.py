"""This rank's slice of each global batch, in the order in which a Lightning run has it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO, Union

import numpy as np

from shardline_io import heartbeat_memory, run
from shardline_io.checkpoints import resume
from shardline_io.errors import DataError
from shardline_io.order.global_batch import Counted
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Piece, split_pieces
from shardline_io.order.sampling import TrainOrder, Window
from shardline_io.shards import IDS, PRESENT, Shards
from shardline_io.stopping import begin

Order = Union[TrainOrder, HeldOutOrder]
_HELD_OUT_FACTOR = (
    4  # rows of a held-out batch over those of a training batch, as in a Lightning run
)


class Batch(dict[str, Any]):
    """A batch by column: NumPy arrays [B, *shape], of the rows of this rank alone.

    A column whose first dimension varies is filled up with zeros to the longest row of the global
    batch, [B, longest, *shape], beside `{name}.lengths` [B] int64 and `{name}.mean_count`, the values
    of the whole global batch over the batches that it is split into; bytes and texts are lists of B.
    An optional column has `{name}.present` [B] bool beside it. Under `data.last_batch=pad` there is
    `weights` [B] float32: multiply each row's loss by its weight.

    Attributes:
        step: number of the optimiser step that the batch goes into, from 1; 0 for held-out rows.
        epoch: from 0.
        ends_step: whether the step's last part, of `trainer.accumulate`, is in it.
        ids: row ids [B] int64, without those of rows that only fill the batch up.
    """

    step: int
    epoch: int
    ends_step: bool
    ids: np.ndarray


@dataclass(frozen=True)
class _Source:
    """The rows of a dataset as batches of an order."""

    shards: Shards
    kinds: dict[str, str]  # of columns that vary: array, bytes or text

    def batches(self, order: Order, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, without the first `start`."""
        per_window = order.batches_per_window()
        for index in range(start // per_window, -(-order.num_batches(epoch) // per_window)):
            window = order.window(epoch, index)
            columns = _Columns(self, window, order, epoch, index)
            skipped = max(0, start - index * per_window)
            for place in range(skipped, len(window.bounds) - 1):
                yield columns.batch(place)


class _Columns:
    """The columns of a window's rows."""

    def __init__(
        self, source: _Source, window: Window, order: Order, epoch: int, index: int
    ) -> None:
        self._window, self._kinds = window, source.kinds
        shards, pieces = source.shards, list(window.pieces)
        self.fixed: dict[str, np.ndarray] = {}
        self.varying: dict[str, list[np.ndarray]] = {}
        self.counted: dict[str, Counted] = {}
        for name in shards.names():
            if shards.varies(name):
                self.varying[name] = shards.rows(name, pieces)
            else:
                self.fixed[name] = shards.fixed(name, pieces)
            if shards.is_optional(name):
                self.fixed[name + PRESENT] = shards.fixed(name + PRESENT, pieces)
        counted = [name for name in self.varying if source.kinds.get(name, "array") == "array"]
        if counted:
            whole = order.whole().window(epoch, index)
            for name in counted:
                lengths = np.take(shards.lengths(name, list(whole.pieces)), whole.rows)
                self.counted[name] = Counted.of(lengths, whole, order)

    def batch(self, place: int) -> Batch:
        """Return a batch of the window."""
        window = self._window
        span = slice(int(window.bounds[place]), int(window.bounds[place + 1]))
        rows = window.rows[span]
        found = Batch()
        for name, values in self.fixed.items():
            found[name] = np.take(values, rows, axis=0)
        found.ids = found.pop(IDS)
        for name, all_rows in self.varying.items():
            chosen = [all_rows[row] for row in rows.tolist()]
            kind = self._kinds.get(name, "array")
            if kind == "array":
                found[name] = _padded(chosen, int(self.counted[name].longest[place]))
                found[name + ".lengths"] = np.array([len(row) for row in chosen], np.int64)
                found[name + ".mean_count"] = np.float32(self.counted[name].mean[place])
            else:
                contents = [row.tobytes() for row in chosen]
                found[name] = [c.decode() for c in contents] if kind == "text" else contents
        if window.weights is not None:
            found["weights"] = window.weights[span]
            found.ids = found.ids[found["weights"] > 0]
        return found


def _padded(rows: list[np.ndarray], longest: int) -> np.ndarray:
    found = np.zeros((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return found


@lru_cache(maxsize=1)
def _source() -> _Source:
    manifest = run.manifest()
    written = manifest["schema"].get("columns") or {}
    kinds = {name: str(of).rstrip("?") for name, of in written.items()}
    return _Source(
        shards=Shards(manifest, Path(run.variable("SHARDS"))),
        kinds={name: kind for name, kind in kinds.items() if kind in ("text", "bytes")},
    )


@lru_cache(maxsize=1)
def _train_order() -> TrainOrder:
    settings, world = run.settings(), run.world()
    data = settings.get("data", {})
    return TrainOrder(
        dataset_id=run.manifest()["dataset"],
        pieces=split_pieces(run.manifest(), "train"),
        global_batch=settings["global_batch"],
        seed=settings["seed"],
        window_rows=int(run.variable("WINDOW_ROWS")),
        streams=data.get("streams", 1),
        partition_shards=data.get("partition_shards", 0) if data.get("epoch") == "partition" else 0,
        is_padded=data.get("last_batch") == "pad",
        rank=world.rank,
        world_size=world.world_size,
        accumulate=settings["trainer"].get("accumulate", 1),
    )


def num_steps(epoch: int | None = None) -> int:
    """Return the optimiser steps of an epoch; of all `trainer.max_epochs` where none is given."""
    order = _train_order()
    if epoch is not None:
        return order.steps(epoch)
    return sum(order.steps(one) for one in range(run.settings()["trainer"]["max_epochs"]))


def train(first_step: int | None = None) -> Iterator[Batch]:
    """Yield this rank's batches of all epochs, in the order in which a Lightning run has them.

    Each batch is a heartbeat for the watchdog, and with `runtime.ledger` its row ids are written.

    Args:
        first_step: optimiser steps that are done; by default those of the last `checkpoint`.

    Raises:
        DataError: a shard cannot be read, or there are fewer rows than a batch has.
    """
    order, saved = _train_order(), resume()
    done = first_step if first_step is not None else saved.step if saved else 0
    begin()
    ledger = _opened_ledger(done)
    try:
        yield from _trained(order, done, ledger)
    finally:
        if ledger:
            ledger.close()
        heartbeat_memory.mine().again("script")


def _trained(order: TrainOrder, done: int, ledger: TextIO | None) -> Iterator[Batch]:
    before = 0  # steps of the epochs that are passed
    for epoch in range(run.settings()["trainer"]["max_epochs"]):
        steps, skipped = order.steps(epoch), max(0, done - before)
        if skipped < steps:
            start = skipped * order.accumulate
            for place, batch in enumerate(_source().batches(order, epoch, start), start):
                batch.epoch, batch.step = epoch, before + place // order.accumulate + 1
                batch.ends_step = (place + 1) % order.accumulate == 0
                heartbeat_memory.mine().tick(batch.step - 1, "train")
                if ledger:
                    line = {"step": batch.step, "epoch": epoch, "ids": batch.ids.tolist()}
                    print(json.dumps(line), file=ledger)
                yield batch
        before += steps


def _opened_ledger(done: int) -> TextIO | None:
    """Open this attempt's file of the sample ledger, where the run keeps one."""
    folder = os.environ.get("SHARDLINE_LEDGER")
    if not folder:
        return None
    world = run.world()
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = f"from-{done:09d}-rank-{world.rank:05d}-of-{world.world_size:05d}.jsonl"
    return (Path(folder) / name).open("w", buffering=1, encoding="utf-8")


def held_out(split: str, *, batch: int | None = None) -> Iterator[Batch]:
    """Yield this rank's batches of a held-out split: each row once over all ranks.

    Args:
        split: `validation` or `test`.
        batch: rows of a batch over all ranks; by default four times `global_batch`.

    Raises:
        DataError: the dataset has no such split, or fewer rows in it than there are ranks.
    """
    splits = run.manifest()["splits"]
    if not splits.get(split):
        raise DataError(
            f"dataset {run.manifest()['dataset']} has no rows in the split {split!r}, expected one of "
            f"{', '.join(name for name, rows in splits.items() if rows)}; name one of these"
        )
    world, size = run.world(), batch or _HELD_OUT_FACTOR * run.settings()["global_batch"]
    pieces: tuple[Piece, ...] = split_pieces(run.manifest(), split)
    order = HeldOutOrder(
        pieces, size, int(run.variable("WINDOW_ROWS")), world.rank, world.world_size
    )
    for found in _source().batches(order, 0, 0):
        found.epoch, found.step, found.ends_step = 0, 0, False
        yield found


def validation() -> Iterator[Batch]:
    """Yield this rank's batches of the validation split, see `held_out`."""
    return held_out("validation")


def test() -> Iterator[Batch]:
    """Yield this rank's batches of the split that the run is evaluated on, see `held_out`."""
    return held_out(run.settings().get("evaluation", {}).get("split", "test"))
