"""Batches that need Shardline itself: transformed, collated, packed, sampled by class or mixed.

`shardline` is only imported if a setting of the run needs it.
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
    # The name is not written out: a run's identity contains what user code imports, and the settings
    # that need these modules are in the identity already.
    return import_module(f"{__name__.partition('_io')[0]}.{module}")


def make_run_batches(setting: str) -> Any:
    """Return the `RunBatches` of this run.

    Args:
        setting: setting that needs `shardline`, for the message.

    Raises:
        ConfigError: `shardline` is not installed in this Python.
        DataError: a dataset is missing, or its schema differs from the first dataset's.
    """
    try:
        run_batches = _of_shardline("data.run_batches")
    except ImportError as error:
        raise ConfigError(
            f"the run has {setting}, but {sys.executable} cannot import shardline ({error}), expected the package "
            "since Shardline's own code applies this setting; install shardline in that environment, or leave the "
            "setting out and do the same in your script"
        ) from None
    place = _of_shardline("config.resolved").DatasetPlace
    table = _of_shardline("config.settings.run_settings").RunSettings
    return run_batches.RunBatches(
        [
            place(
                manifest=Path(one["manifest"]),
                shards=Path(one["shards"]),
                weight=one["weight"],
                fold=own_run.fold(),
            )
            for one in own_run.datasets()
        ],
        _of_shardline("config.resolved").as_type(
            {**own_run.settings(), "data": own_run.data_settings()}, table
        ),
        verify=own_run.reads().get("verify", "first"),
        num_sharing=own_run.world().local_world_size,
    )


class RunBatchesStream:
    """Batches of a `WindowStream`, converted for a script.

    Args:
        stream: a `WindowStream` of torch tensors.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        collate = own_run.data_settings().get("collate")
        self._is_users = isinstance(collate, str) and collate not in _COLLATE

    def batches(self, visits: Visits) -> Iterator[tuple[int, int, Batch]]:
        """Yield the batches of some epochs, each as (epoch, index in the epoch, batch).

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
    """Return a tensor as an array over the same memory; return values that NumPy lacks unchanged."""
    if getattr(value, "is_nested", False) or not hasattr(value, "numpy"):
        return value
    try:
        return value.numpy()[()]  # a scalar for an array without dimensions
    except (TypeError, RuntimeError):  # such as bfloat16
        return value
