"""One run's data for one rank: train and validation batches, resumable at the exact sample.

Which rows a step consumes is decided in `shardline.order.sampling`, how they come into
memory in `shardline.data.stream`; here both are put behind Lightning's interface.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule

from shardline.config.run_spec import DatasetPlace
from shardline.config.settings.run import RunSettings
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_json
from shardline.core.world import World
from shardline.data.capacity import LABEL_BYTES, Capacity
from shardline.data.collate import Batch
from shardline.data.columns import features_of
from shardline.data.integrity import Policy, Verifier
from shardline.data.shard_map import ShardMap
from shardline.data.statistics_file import read_statistics
from shardline.data.stream import ShardStream
from shardline.order.pieces import split_pieces
from shardline.order.sampling import HeldOutOrder, Order, TrainOrder


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
        self.manifest: dict[str, Any] = read_json(
            manifest_path, remedy="run the pipeline again to seal the dataset"
        )
        self.shards = ShardMap(self.manifest, folder)
        self.verifier = Verifier(self.shards, verify)
        self._capacity = Capacity(self.shards)

    def train_order(self, settings: RunSettings, world: World) -> TrainOrder:
        """Return the order in which a run's settings visit the train split."""
        data = settings.data
        return TrainOrder(
            dataset_id=self.manifest["dataset"],
            pieces=split_pieces(self.manifest, "train"),
            global_batch=settings.global_batch,
            seed=settings.seed,
            window_rows=self.window_rows(data.window_bytes),
            streams=data.streams,
            partition_shards=data.partition_shards if data.epoch == "partition" else 0,
            is_padded=data.last_batch == "pad",
            rank=world.rank,
            world_size=world.world_size,
            accumulate=settings.trainer.accumulate,
        )

    def held_out_order(
        self, split: str, *, batch: int, window_bytes: int, rank: int = 0, world_size: int = 1
    ) -> HeldOutOrder:
        """Return the order in which a held-out split is visited, every row once.

        Raises:
            DataError: the split has fewer rows than there are ranks.
        """
        if not self.manifest["splits"][split]:
            raise DataError(
                f"dataset {self.manifest['dataset']}: its {split} split has no rows, expected one for each rank at "
                "least; give it a share in the dataset's `splits`, or let the run use another split"
            )
        return HeldOutOrder(
            pieces=split_pieces(self.manifest, split),
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
        self._capacity.claim(order)
        return ShardStream(self.shards, order, check=self.verifier.check, **options)

    @cached_property
    def statistics(self) -> dict[str, dict[str, Any]]:
        """The train rows' count, mean, std, min and max by column, each of the last four [F]; read when asked for.

        Raises:
            DataError: they lie in a file of their own, which is missing or damaged.
        """
        return read_statistics(self.manifest, self.shards.folder)

    def tables(self, order: Order) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield a table's batches once: features [B, *feature_shape] as stored, and labels [B].

        Raises:
            DataError: the dataset has other columns; the message names them.
        """
        for batch in self.stream(order, num_epochs=1).batches():
            if isinstance(batch, dict):
                raise DataError(
                    f"dataset {self.manifest['dataset']} has the columns {', '.join(self.shards.columns)}, expected "
                    "features and labels of a table; this is not there for other columns yet"
                )
            yield batch


def only_dataset(settings: RunSettings, datasets: Sequence[DatasetPlace]) -> DatasetPlace:
    """Return the dataset of a run whose samples are taken as they are stored.

    Raises:
        ConfigError: samples have to be mixed, transformed, collated or packed.
    """
    steps = ("transform", "eval_transform", "collate", "pack", "class_weights", "epoch_samples")
    given = [f"data.{key}" for key in steps if getattr(settings.data, key) is not None]
    if len(datasets) > 1 or given:
        what = given[0] if given else f"a mix of {len(datasets)} datasets"
        raise ConfigError(f"{what} is not there yet in trainings; leave it out")
    return datasets[0]


class Normalizer:
    """Turns features as stored into what the model sees, on the batch's device.

    A dataset has them if its rows are features and labels, see `features_of`. Other columns stay as they are.

    Args:
        dataset: whose train rows' statistics are used.
        mode: `standard` (mean and deviation per feature), `global` (one of each over
            all features) or `none`.
        dtype: floating type of the result.

    Attributes:
        constants: shift and scale [*feature_shape] of `(x - shift) * scale`; None if nothing is normalised.

    Raises:
        DataError: the dataset's statistics are missing or damaged.
    """

    def __init__(self, dataset: Dataset, mode: str, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.constants: tuple[torch.Tensor, torch.Tensor] | None = None
        features = features_of(dataset.manifest["schema"])
        if mode != "none" and features:
            shift, scale = shift_and_scale(dataset.statistics["features"], mode)
            self.constants = (
                torch.from_numpy(shift).to(dtype).reshape(features.shape),
                torch.from_numpy(scale).to(dtype).reshape(features.shape),
            )

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Return features [B, *shape] normalised, in the chosen type."""
        features = features.to(self._dtype)
        if self.constants is None:
            return features
        if self.constants[0].device != features.device:
            shift, scale = (constant.to(features.device) for constant in self.constants)
            self.constants = shift, scale
        return torch.sub(features, self.constants[0]).mul_(self.constants[1])

    def batch(self, batch: Batch) -> Batch:
        """Return a batch with its features normalised, where its rows are features and labels."""
        if not isinstance(batch, dict):
            return self(batch[0]), *batch[1:]
        features = batch.get("features")
        if self.constants is None or not isinstance(features, torch.Tensor):
            return batch
        return {**batch, "features": self(features)}


def shift_and_scale(statistics: Mapping[str, Any], mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what features [features] are normalised with: (x - shift) * scale; see `Normalizer`."""
    mean, std = np.array(statistics["mean"]), np.array(statistics["std"])
    if mode == "global":
        # variance over all features: the mean of the variances and the variance of the means
        overall = np.sqrt((std**2).mean() + mean.var())
        mean, std = np.full_like(mean, mean.mean()), np.full_like(std, overall)
    return mean, np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)


class TrainLoader:
    """Iterates the train batches and remembers where it is, for mid-epoch resume.

    Lightning stores `state_dict()` in each training checkpoint and calls
    `set_epoch` of `sampler` before each epoch.
    """

    def __init__(self, stream: ShardStream, order: TrainOrder) -> None:
        self.stream = stream
        self._order = order
        self._epoch = self._start_epoch = self._start = 0

    @property
    def sampler(self) -> "TrainLoader":
        """What Lightning tells the epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration gives."""
        self._epoch = epoch
        self.stream.position = self._first_batch

    @property
    def _first_batch(self) -> int:
        return self._start if self._epoch == self._start_epoch else 0

    def __len__(self) -> int:
        return self._order.num_batches(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        # looked up with the first batch: after a resume at an epoch's end Lightning takes the
        # iterator before it tells the epoch, and takes no other
        yield from self.stream.batches(self._epoch, self._first_batch)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the samples of it that all ranks together have consumed."""
        samples = self.stream.position * self._order.global_batch // self._order.accumulate
        return {"epoch": self._epoch, "samples": samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the samples that were consumed, at this or another world size."""
        self._start_epoch = state["epoch"]
        self._start = state["samples"] * self._order.accumulate // self._order.global_batch
        self.set_epoch(state["epoch"])


class HeldOutLoader:
    """Iterates this rank's part of a held-out split."""

    def __init__(self, stream: ShardStream, order: HeldOutOrder) -> None:
        self._stream, self._order = stream, order
        self._visits = 0

    def __len__(self) -> int:
        return self._order.num_batches()

    def __iter__(self) -> Iterator[Batch]:
        self._visits += 1  # the next visit's first window is read ahead
        return self._stream.batches(self._visits)


class ShardDataModule(LightningDataModule):
    """Train and validation data of one run, for one rank.

    A batch is (features [B, *feature_shape], labels [B]) and, under
    `data.last_batch=pad`, weights [B]: multiply each row's loss by its weight. A dataset of
    other columns gives dicts by name, see `ShardStream.batches`.

    Args:
        settings: of the run, on the ranks that are there.
        datasets: of the run.
        world: this rank's place.
        verify: when a shard is verified against its digest.
        pin: gather into page-locked memory, for a GPU.
    """

    def __init__(
        self, settings: RunSettings, datasets: Sequence[DatasetPlace], world: World, *,
        verify: Policy = "first", pin: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        place = only_dataset(settings, datasets)
        self._dataset = Dataset(place.manifest, place.shards, verify=verify)
        self.manifest = self._dataset.manifest
        self._normalize = Normalizer(
            self._dataset, settings.data.normalize, model_dtype(settings.precision)
        )
        options = {"local_rank": world.local_rank, "pin": pin}
        self._order = self._dataset.train_order(settings, world)
        self._max_epochs = settings.trainer.max_epochs
        self.loader = TrainLoader(
            self._dataset.stream(self._order, num_epochs=self._max_epochs, **options), self._order
        )
        held_out = self._dataset.held_out_order(
            "validation",
            batch=4 * settings.global_batch,
            window_bytes=settings.data.window_bytes,
            rank=world.rank,
            world_size=world.world_size,
        )
        self._validation = HeldOutLoader(self._dataset.stream(held_out, **options), held_out)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all epochs."""
        return sum(self._order.steps(epoch) for epoch in range(self._max_epochs))

    def train_dataloader(self) -> TrainLoader:
        """Return this rank's train batches; asked again where epochs differ in length."""
        if self.trainer is not None:
            self.loader.set_epoch(self.trainer.current_epoch)
        return self.loader

    def val_dataloader(self) -> HeldOutLoader:
        """Return this rank's validation batches."""
        return self._validation

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise a batch where it will be used."""
        return self._normalize.batch(batch)


def model_dtype(precision: str) -> torch.dtype:
    """Return the floating type of a model's inputs under a `precision` setting."""
    return torch.float64 if precision == "64-true" else torch.float32
