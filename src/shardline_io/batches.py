"""This rank's slice of each global batch, in the same order as in a Lightning run."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TextIO

from shardline_io import heartbeat_memory, own_run
from shardline_io.checkpoints import resume
from shardline_io.errors import DataError
from shardline_io.ledger_files import open_file
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.lengths import Lengths, first_rows, in_rows
from shardline_io.order.mix import MixOrder
from shardline_io.order.pieces import Piece, split_pieces
from shardline_io.order.sampling import TrainOrder
from shardline_io.preprocessing import Preprocessor
from shardline_io.shardline_batches import RunBatchesStream, make_run_batches
from shardline_io.shards import Shards
from shardline_io.stopping import alive, begin
from shardline_io.streams import Batch, Order, RowStream, Stream

# Size of a held-out batch relative to `global_batch`, as in a Lightning run
_HELD_OUT_FACTOR = 4


@lru_cache(maxsize=1)
def _run_batches() -> Any:
    """Return the `RunBatches` if a setting needs Shardline's own code; None if rows are used as stored."""
    setting = own_run.setting_for_shardline(own_run.data_settings(), len(own_run.datasets()))
    return make_run_batches(setting) if setting else None


@lru_cache(maxsize=1)
def _shards() -> Shards:
    return Shards(own_run.manifest(), Path(own_run.variable("SHARDS")))


def _pieces(split: str) -> tuple[Piece, ...]:
    shards = own_run.manifest()["shards"]
    return split_pieces([shard["rows"] for shard in shards], split, own_run.fold())


def _rows(order: Order) -> RowStream:
    written = own_run.manifest()["schema"].get("columns") or {}
    kinds = {name: str(of).rstrip("?") for name, of in written.items()}
    kinds = {name: kind for name, kind in kinds.items() if kind in ("text", "bytes")}
    check = (lambda shard: None) if _is_unverified() else partial(ask, "shard")
    fitted = own_run.manifest().get("preprocessing")
    preprocessor = Preprocessor(fitted, is_own=True) if fitted else None
    return RowStream(
        _shards(), kinds, order, check, own_run.world().local_rank, preprocessor,
        is_weighted=bool(own_run.manifest()["schema"].get("weighted")),
    )  # fmt: skip


def _is_unverified() -> bool:
    return bool(own_run.reads().get("verify") == "off")


@lru_cache(maxsize=1)
def _train() -> tuple[Stream, TrainOrder | MixOrder]:
    settings, world = own_run.settings(), own_run.world()
    if _run_batches():
        stream, order = _run_batches().train(
            world, local_rank=world.local_rank, num_epochs=settings["trainer"]["max_epochs"]
        )
        return RunBatchesStream(stream), order
    plain = _train_order()
    return _rows(plain), plain


def _train_order() -> TrainOrder:
    settings, world = own_run.settings(), own_run.world()
    data = settings.get("data", {})
    return TrainOrder(
        dataset_id=own_run.manifest()["dataset"],
        pieces=_pieces("train"),
        global_batch=settings["global_batch"],
        seed=settings["seed"],
        window_rows=int(own_run.variable("WINDOW_ROWS")),
        streams=data.get("streams", 1),
        partition_shards=data.get("partition_shards", 0) if data.get("epoch") == "partition" else 0,
        is_padded=data.get("last_batch") == "pad",
        rank=world.rank,
        world_size=world.world_size,
        accumulate=settings["trainer"].get("accumulate", 1),
        lengths=Lengths.of(settings["trainer"]),
    )


def num_steps(epoch: int | None = None) -> int:
    """Return the number of optimiser steps in an epoch; by default in all `trainer.max_epochs` epochs."""
    _, order = _train()
    if epoch is not None:
        return order.steps(epoch)
    return order.total_steps(own_run.settings()["trainer"]["max_epochs"])


def train(first_step: int | None = None) -> Iterator[Batch]:
    """Yield this rank's training batches of all epochs, in the same order as in a Lightning run.

    Each batch is a heartbeat for the watchdog. With `runtime.ledger` its row ids are recorded. From
    the first batch to the end of the process, `runtime.hang_timeout_s` applies, see `alive`. A
    thread reads the next window ahead and ends with the iterator.

    Args:
        first_step: optimiser steps already done; by default those of the last `checkpoint`.

    Raises:
        DataError: a shard cannot be read, a sample cannot be transformed, or the train split has
            fewer rows than a global batch.
        ConfigError: a setting needs the package `shardline`, which is not installed in this Python.
    """
    saved = resume()
    done = first_step if first_step is not None else saved.step if saved else 0
    begin()
    if not own_run.world().rank:
        ask(
            "resumed",
            {"step": done, "saved_s": saved.saved_s if saved and done == saved.step else None},
        )
    ledger = _opened_ledger(done)
    try:
        for batch in _trained(done):
            heartbeat_memory.mine().tick(batch.step - 1, "train")
            if ledger:
                print(json.dumps(_ledger_line(batch)), file=ledger)
            yield batch
    finally:
        if ledger:
            ledger.close()
        heartbeat_memory.mine().again("end")


def _trained(done: int) -> Iterator[Batch]:
    stream, order = _train()
    firsts, visits, before = [], [], 0  # before: steps in all earlier epochs
    for epoch in range(order.num_epochs(own_run.settings()["trainer"]["max_epochs"])):
        steps, skipped = order.steps(epoch), max(0, done - before)
        if skipped < steps:
            visits.append((epoch, skipped * order.accumulate))
        firsts.append(before)
        before += steps
    for epoch, place, batch in stream.batches(visits):
        batch.epoch, batch.step = epoch, firsts[epoch] + place // order.accumulate + 1
        batch.ends_step = (place + 1) % order.accumulate == 0
        yield batch


def _ledger_line(batch: Batch) -> dict[str, int | list[int]]:
    line = {"step": batch.step, "epoch": batch.epoch, "ids": batch.ids.tolist()}
    if batch.parts is not None and batch.passes is not None:
        line |= {"parts": batch.parts.tolist(), "passes": batch.passes.tolist()}
    return line


def _opened_ledger(done: int) -> TextIO | None:
    """Open this attempt's file of the sample ledger; return None if the run has no ledger."""
    folder = os.environ.get("SHARDLINE_LEDGER")
    if not folder:
        return None
    world = own_run.world()
    return open_file(Path(folder), start=done, rank=world.rank, world_size=world.world_size)


def held_out(split: str, *, batch: int | None = None) -> Iterator[Batch]:
    """Yield this rank's batches of a held-out split; all ranks together read each row once.

    Args:
        split: `validation` or `test`.
        batch: rows of a batch over all ranks; by default four times `global_batch`.

    Raises:
        DataError: the split does not exist, or has fewer rows than there are ranks.
        ConfigError: a setting needs the package `shardline`, which is not installed in this Python.
    """
    splits = own_run.manifest()["splits"]
    if not splits.get(split) and (split not in splits or not _run_batches()):
        raise DataError(
            f"dataset {own_run.manifest()['dataset']} has no rows in the split {split!r}, expected a split with rows; "
            f"use one of {', '.join(name for name, rows in splits.items() if rows)}"
        )
    yield from _visit(split, batch)


def _visit(split: str, batch: int | None = None, limit: int | float = 1.0) -> Iterator[Batch]:
    size = batch or _HELD_OUT_FACTOR * own_run.settings()["global_batch"]
    stream = _held_out(split, size, limit)
    for _, _, found in stream.batches([(0, 0)]):
        alive()
        found.epoch, found.step, found.ends_step = 0, 0, False
        yield found


@lru_cache(maxsize=8)
def _held_out(split: str, size: int, limit: int | float) -> Stream:
    world = own_run.world()
    if _run_batches():  # the stream has threads, so it is kept for further visits
        place = {"batch": size, "rank": world.rank, "world_size": world.world_size}
        stream, _ = _run_batches().held_out(
            split, **place, local_rank=world.local_rank, num_epochs=1, limit=limit
        )
        return RunBatchesStream(stream)
    pieces = first_rows(_pieces(split), limit)
    window_rows = int(own_run.variable("WINDOW_ROWS"))
    return _rows(HeldOutOrder(pieces, size, window_rows, world.rank, world.world_size))


def validation() -> Iterator[Batch]:
    """Yield this rank's batches of the validation split, like `held_out`, within `trainer.limit_val_batches`."""
    settings = own_run.settings()
    trainer = settings["trainer"]
    limit = trainer.get("overfit_batches") or trainer.get("limit_val_batches", 1.0)
    return _visit("validation", limit=in_rows(limit, settings["global_batch"]))


def test() -> Iterator[Batch]:
    """Yield this rank's batches of the split in `evaluation.split`, like `held_out`."""
    return held_out(own_run.settings().get("evaluation", {}).get("split", "test"))


class _Rank:
    """Connection to the rank: one line of JSON each way, through an inherited socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._lock = threading.Lock()

    def ask(self, name: str, value: Any) -> None:
        answer = ""
        with self._lock, suppress(OSError):  # a broken socket counts as a missing answer
            self._lines.write(json.dumps({name: value}) + "\n")
            self._lines.flush()
            answer = self._lines.readline()
        if not answer:
            raise DataError(
                "the rank that started this script does not answer, expected it to run as long as the script; start "
                "the pipeline again"
            )
        if found := json.loads(answer):
            raise DataError(found)


@lru_cache(maxsize=1)
def _rank() -> _Rank | None:
    descriptor = os.environ.get("SHARDLINE_REQUESTS")
    return _Rank(int(descriptor)) if descriptor else None


def ask(name: str, value: Any) -> None:
    """Send a request to the rank and wait until it agrees; return at once if there is no rank.

    Raises:
        DataError: the rank found a problem; carries the rank's message.
    """
    if rank := _rank():
        rank.ask(name, value)
