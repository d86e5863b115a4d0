"""Sealed datasets: orders of their splits, and streams of their rows."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import DataError
from shardline.core.world import World
from shardline.data.capacity import LABEL_BYTES, Capacity
from shardline.data.folds import of_fold
from shardline.data.integrity import Policy, Verifier
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import ByColumn
from shardline.data.statistics_file import read_statistics
from shardline.data.stream import ShardStream
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.lengths import Lengths, first_rows
from shardline_io.order.pieces import Piece
from shardline_io.order.sampling import Order, TrainOrder


def read_manifest(path: Path, fold: int | None = None) -> Manifest:
    """Read a dataset's manifest, with the rows and statistics of a run's splits.

    Args:
        fold: fold that the run tests on, see `data.folds.of_fold`.

    Raises:
        DataError: the manifest cannot be read, is not a manifest, or the dataset has no such fold.
    """
    remedy = "run the pipeline again to seal the dataset"
    return of_fold(read_record(path, Manifest, remedy=remedy), fold)


class Dataset:
    """A sealed dataset.

    Args:
        manifest_path: path of the sealed `manifest.json`.
        folder: folder of the shards in the store.
        verify: when shards are verified against their checksums: `off`, `first` or `always`.
        fold: fold that a run tests on, if the dataset has folds.
        read_as: manifest whose schema and preprocessing apply instead.

    Attributes:
        manifest: the manifest, with the rows and statistics of the run's splits.

    Raises:
        DataError: the manifest or a shard is missing, or a shard has the wrong size.
    """

    def __init__(
        self, manifest_path: Path, folder: Path, *, verify: Policy = "first", fold: int | None = None,
        read_as: Manifest | None = None,
    ) -> None:  # fmt: skip
        found = self.manifest = read_manifest(manifest_path, fold)
        if read_as:
            self.manifest = structs.replace(
                self.manifest, schema=read_as.schema, preprocessing=read_as.preprocessing
            )
        self.shards = ShardMap(self.manifest, folder, fold, is_own=self.manifest is found)
        self.verifier = Verifier(self.shards, verify)
        self._capacity = Capacity(self.shards)

    @property
    def key(self) -> str:
        """Key of the dataset's random order: the digest in its id, which does not depend on its name."""
        return self.manifest.dataset[-12:]

    def train_order(
        self, settings: RunSettings, world: World, pieces: Sequence[Piece] | None = None,
        window_rows: int | None = None,
    ) -> TrainOrder:  # fmt: skip
        """Return the order of the train split under a run's settings.

        Args:
            pieces: units to visit; by default the split's rows.
            window_rows: number of units in memory at a time; by default from `data.window_bytes`.
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
            lengths=Lengths.of(structs.asdict(settings.trainer)),
        )

    def held_out_order(
        self, split: str, *, batch: int, window_bytes: int, rank: int = 0, world_size: int = 1,
        kind: Callable[..., HeldOutOrder] = HeldOutOrder, limit: int | float = 1.0,
    ) -> HeldOutOrder:  # fmt: skip
        """Return the order of a held-out split, every row once.

        Args:
            kind: class of the order.
            limit: number of the split's first rows to visit, or a share of the split.

        Raises:
            DataError: the split has fewer rows than there are ranks.
        """
        if not self.manifest.splits[split]:
            raise DataError(
                f"dataset {self.manifest.dataset}: the {split} split has no rows, expected at least one for each rank; "
                "give it a share in the dataset's `splits`, define the loader of the data module, or let the run use "
                "another split (evaluation.split)"
            )
        return kind(
            pieces=first_rows(self.shards.pieces(split), limit),
            global_batch=batch,
            window_rows=self.window_rows(window_bytes),
            rank=rank,
            world_size=world_size,
        )

    def window_rows(self, window_bytes: int) -> int:
        """Return the number of rows in a window of this size."""
        return window_bytes // (self.shards.row_bytes + LABEL_BYTES)

    def stream(self, order: Order, **options: Any) -> ShardStream:
        """Return a stream of this dataset's rows.

        Args:
            order: order of the rows.
            options: options of `ShardStream`.

        Raises:
            DataError: this process's limits do not allow the windows.
        """
        streams = order.streams if isinstance(order, TrainOrder) else 1
        self._capacity.claim(order.pieces, order.window_rows, order.global_batch, streams)
        return ShardStream(self.shards, order, check=self.verifier.check, **options)

    def claim(self, pieces: Sequence[Piece], batch: int, window_bytes: int) -> None:
        """Check that this process's limits also allow a stream that is created elsewhere.

        Raises:
            DataError: this process's limits do not allow the windows.
        """
        self._capacity.claim(pieces, self.window_rows(window_bytes), batch)

    @cached_property
    def statistics(self) -> ByColumn:
        """Statistics of the train rows by column, read on first use.

        Raises:
            DataError: the file of the statistics is missing or damaged.
        """
        return read_statistics(self.manifest, self.shards.folder, self.shards.fold)
