"""A sealed dataset, ready to be streamed: the orders of its splits, and streams of whole columns."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import DataError
from shardline.core.world import World
from shardline.data.capacity import LABEL_BYTES, Capacity
from shardline.data.integrity import Policy, Verifier
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import ByColumn
from shardline.data.statistics_file import read_statistics
from shardline.data.stream import ShardStream
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Piece
from shardline_io.order.sampling import Order, TrainOrder


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a dataset that ranks read.

    Raises:
        DataError: it cannot be read, or has another form.
    """
    return read_record(path, Manifest, remedy="run the pipeline again to seal the dataset")


class Dataset:
    """A sealed dataset, ready to be streamed.

    Args:
        manifest_path: the sealed `manifest.json`.
        folder: folder of the shards in the store.
        verify: when a shard is verified against its digest: `off`, `first` or `always`.

    Raises:
        DataError: the manifest or a shard is missing, or a shard has the wrong size.
    """

    def __init__(self, manifest_path: Path, folder: Path, *, verify: Policy = "first") -> None:
        self.manifest = read_manifest(manifest_path)
        self.shards = ShardMap(self.manifest, folder)
        self.verifier = Verifier(self.shards, verify)
        self._capacity = Capacity(self.shards)

    @property
    def key(self) -> str:
        """What its order of rows is drawn from: the digest at the end of its id, which no name changes."""
        return self.manifest.dataset[-12:]

    def train_order(
        self, settings: RunSettings, world: World, pieces: Sequence[Piece] | None = None,
        window_rows: int | None = None,
    ) -> TrainOrder:  # fmt: skip
        """Return the order in which a run's settings visit the train split.

        Args:
            pieces: what is visited, if not the split's rows.
            window_rows: how many of these are in memory at a time.
        """
        data = settings.data
        return TrainOrder(
            dataset_id=self.manifest.dataset,
            pieces=self.shards.pieces("train") if pieces is None else tuple(pieces),
            global_batch=settings.global_batch,
            seed=settings.seed,
            window_rows=window_rows or self.window_rows(data.window_bytes),
            streams=data.streams,
            partition_shards=data.partition_shards if data.epoch == "partition" else 0,
            is_padded=data.last_batch == "pad",
            rank=world.rank,
            world_size=world.world_size,
            accumulate=settings.trainer.accumulate,
        )

    def held_out_order(
        self, split: str, *, batch: int, window_bytes: int, rank: int = 0, world_size: int = 1,
        kind: Callable[..., HeldOutOrder] = HeldOutOrder,
    ) -> HeldOutOrder:  # fmt: skip
        """Return the order in which a held-out split is visited, every row once.

        Raises:
            DataError: the split has fewer rows than there are ranks.
        """
        if not self.manifest.splits[split]:
            raise DataError(
                f"dataset {self.manifest.dataset}: its {split} split has no rows, expected one for each rank at "
                "least; give it a share in the dataset's `splits`, or let the run use another split"
            )
        return kind(
            pieces=self.shards.pieces(split),
            global_batch=batch,
            window_rows=self.window_rows(window_bytes),
            rank=rank,
            world_size=world_size,
        )

    def window_rows(self, window_bytes: int) -> int:
        """Return the rows that a window of this size holds."""
        return window_bytes // (self.shards.row_bytes + LABEL_BYTES)

    def stream(self, order: Order, **options: Any) -> ShardStream:
        """Return a stream of this dataset's rows; options as of `ShardStream`.

        Raises:
            DataError: this process's limits do not let its windows be mapped.
        """
        streams = order.streams if isinstance(order, TrainOrder) else 1
        self._capacity.claim(order.pieces, order.window_rows, order.global_batch, streams)
        return ShardStream(self.shards, order, check=self.verifier.check, **options)

    def claim(self, pieces: Sequence[Piece], batch: int, window_bytes: int) -> None:
        """Add the windows of a stream that is made elsewhere.

        Args:
            pieces: rows of the split.

        Raises:
            DataError: this process's limits do not let its windows be mapped.
        """
        self._capacity.claim(pieces, self.window_rows(window_bytes), batch)

    @cached_property
    def statistics(self) -> ByColumn:
        """The train rows' statistics by column; read when asked for.

        Raises:
            DataError: they lie in a file of their own, which is missing or damaged.
        """
        return read_statistics(self.manifest, self.shards.folder)
