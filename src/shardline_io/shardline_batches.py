"""Batches that only Shardline's own code can make: transformed, collated, packed, drawn by class or mixed.

Shardline is looked for beside the program, and imported where a setting asks for it alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shardline_io import own_run
from shardline_io.errors import ConfigError
from shardline_io.streams import Batch, Visits

_COLLATE = ("pad", "nested")
_TABLE = ("features", "labels", "weights")


def _of_shardline(module: str) -> Any:
    # not by a name that is written out: what user code imports counts in a run's identity, and what is
    # imported here counts by the settings that ask for it
    return import_module(f"{__name__.partition('_io')[0]}.{module}")


def make_run_batches(setting: str) -> Any:
    """Return Shardline's `RunBatches` of this run.

    Args:
        setting: what needs it, for the message.

    Raises:
        ConfigError: this Python has no Shardline.
        DataError: a dataset is not there, or has another schema than the first.
    """
    try:
        run_batches = _of_shardline("data.run_batches")
    except ImportError as error:
        raise ConfigError(
            f"the run has {setting}, but {sys.executable} cannot import shardline ({error}), expected it beside "
            "shardline_io, since Shardline's own code applies this; install shardline in that environment, or leave "
            "the setting out and do this in the program"
        ) from None
    place = _of_shardline("config.resolved").DatasetPlace
    table = _of_shardline("config.settings.run_settings").RunSettings
    return run_batches.RunBatches(
        [
            place(manifest=Path(one["manifest"]), shards=Path(one["shards"]), weight=one["weight"])
            for one in own_run.datasets()
        ],
        _of_shardline("config.resolved").as_type(
            {**own_run.settings(), "data": own_run.data_settings()}, table
        ),
        verify=own_run.reads().get("verify", "first"),
        num_sharing=own_run.world().local_world_size,
    )


class RunBatchesStream:
    """Batches of a stream of Shardline's, as a program is given them.

    Args:
        stream: a `WindowStream`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        collate = own_run.data_settings().get("collate")
        self._is_users = isinstance(collate, str) and collate not in _COLLATE

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield epoch, place in the epoch and batch of each.

        Raises:
            DataError: a shard cannot be read or is damaged, or a sample cannot be transformed.
        """
        for epoch, start in visits:
            for place, made in enumerate(self._stream.batches(epoch, start), start):
                batch = self._batch(made)
                batch.ids = self._stream.batch_ids
                batch.parts = self._stream.batch_parts
                batch.passes = self._stream.batch_passes
                yield epoch, place, batch

    def _batch(self, made: Any) -> Batch:
        if isinstance(made, tuple) and not self._is_users:
            made = dict(zip(_TABLE, made))
        if isinstance(made, Mapping):
            return Batch({name: _array(value) for name, value in made.items()})
        batch = Batch()
        batch.collated = made
        return batch


def _array(value: Any) -> Any:
    """Return a tensor as an array over the same memory; what NumPy has no form for stays as it is."""
    if getattr(value, "is_nested", False) or not hasattr(value, "numpy"):
        return value
    try:
        return value.numpy()[()]  # of no dimension: a number
    except (TypeError, RuntimeError):  # such as bfloat16
        return value
