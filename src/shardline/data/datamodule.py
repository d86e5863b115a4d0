"""Lightning data module of a run: one rank's train and validation batches, with exact resume.

`shardline_io.order.sampling` decides which rows a step consumes. `shardline.data.stream` reads them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from msgspec import UNSET
from pytorch_lightning import LightningDataModule

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.optim_settings import Schedule
from shardline.config.settings.run_settings import RunSettings
from shardline.core.dtypes import is_narrow
from shardline.core.world import World
from shardline.data.collate import Batch, ColumnTuple
from shardline.data.columns import features_of
from shardline.data.integrity import Policy
from shardline.data.moments import FeatureSummary
from shardline.data.packing import sentence_of
from shardline.data.run_batches import RunBatches
from shardline.data.statistics import ByColumn
from shardline.data.window_stream import WindowStream
from shardline.records.datasets import Manifest
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.lengths import in_rows
from shardline_io.order.mix import MixOrder
from shardline_io.order.sampling import TrainOrder


class Described(Protocol):
    """A `Dataset` or `RunBatches`, as far as the normalisation needs them."""

    @property
    def manifest(self) -> Manifest: ...  # noqa: D102

    @property
    def statistics(self) -> ByColumn: ...  # noqa: D102


class Normalizer:
    """Normalisation of features, on the batch's device.

    Only applies to rows of features and labels, see `features_of`; other columns are unchanged.

    Args:
        dataset: dataset with the statistics of the train rows.
        mode: `standard` (mean and deviation per feature), `global` (one mean and one deviation over
            all features) or `none`.
        dtype: floating type of the result; with 16 bits, of all numbers of a batch.

    Attributes:
        constants: shift and scale [*feature_shape] of `(x - shift) * scale`; None if nothing is normalised.

    Raises:
        DataError: the dataset's statistics are missing or damaged.
    """

    def __init__(self, dataset: Described, mode: str, dtype: torch.dtype) -> None:
        self._is_half, self._half = is_narrow(dtype), dtype
        self._is_raw = mode == "raw"
        self._dtype = dtype = torch.float32 if self._is_half else dtype
        self.constants: tuple[torch.Tensor, torch.Tensor] | None = None
        features = features_of(dataset.manifest.schema)
        # Preprocessed features are scaled already. Statistics are those of the stored rows, before
        # the transforms of a torch dataset.
        schema = dataset.manifest.schema
        if (
            mode not in ("none", "raw")
            and features
            and not schema.stored
            and schema.sampled is UNSET
        ):
            shift, scale = shift_and_scale(dataset.statistics["features"], mode)
            self.constants = (
                torch.from_numpy(shift).to(dtype).reshape(features.shape),
                torch.from_numpy(scale).to(dtype).reshape(features.shape),
            )

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Normalise features [B, *shape] and convert them to the chosen type.

        Types of 16 bits are chosen after the normalisation, which needs more digits.
        """
        features = self._normalized(features)
        return self._as_half(features) if self._is_half else features

    def _normalized(self, features: torch.Tensor) -> torch.Tensor:
        if self._is_raw and not features.is_floating_point():
            return features
        features = features.to(self._dtype)
        if self.constants is None:
            return features
        if self.constants[0].device != features.device:
            shift, scale = (constant.to(features.device) for constant in self.constants)
            self.constants = shift, scale
        return torch.sub(features, self.constants[0]).mul_(self.constants[1])

    def batch(self, batch: Batch) -> Batch:
        """Normalise the features of a batch whose rows are features and labels."""
        batch = self._batch(batch)
        return apply_to_collection(batch, torch.Tensor, self._as_half) if self._is_half else batch

    def _as_half(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._half) if values.is_floating_point() else values

    def _batch(self, batch: Batch) -> Batch:
        # a function of data.collate may return one tensor
        if isinstance(batch, ColumnTuple | torch.Tensor):
            return batch
        if not isinstance(batch, dict):
            return self._normalized(batch[0]), *batch[1:]
        features = batch.get("features")
        if self.constants is None or not isinstance(features, torch.Tensor):
            return batch
        return {**batch, "features": self._normalized(features)}


def shift_and_scale(statistics: FeatureSummary, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale [features] of the normalisation `(x - shift) * scale`, see `Normalizer`."""
    mean, std = statistics.mean, statistics.std
    if mode == "global":
        # variance over all features: mean of the variances plus variance of the means
        overall = np.sqrt((std**2).mean() + mean.var())
        mean, std = np.full_like(mean, mean.mean()), np.full_like(std, overall)
    return mean, np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)


class TrainLoader:
    """Loader of train batches that tracks its position, for resume within an epoch.

    Lightning stores `state_dict()` in each training checkpoint, and calls `sampler.set_epoch` before
    each epoch.
    """

    def __init__(self, stream: WindowStream[Any], order: TrainOrder | MixOrder) -> None:
        self.stream = stream
        self._order = order
        self._epoch = self._start_epoch = self._start = 0

    @property
    def sampler(self) -> "TrainLoader":
        """The loader itself, since Lightning calls `sampler.set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch
        self.stream.position = self._first_batch

    @property
    def _first_batch(self) -> int:
        return self._start if self._epoch == self._start_epoch else 0

    def __len__(self) -> int:
        return self._order.num_batches(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        # The epoch is read with the first batch: after a resume at an epoch's end, Lightning creates
        # the only iterator before it calls `set_epoch`.
        yield from self.stream.batches(self._epoch, self._first_batch)

    def again(self) -> Iterator[Batch]:
        """Return the current epoch's batches from the beginning, for a pass without training."""
        return self.stream.batches(self._epoch, 0)

    def pass_epoch(self) -> None:
        """Take the position behind the last batch of the epoch."""
        self.stream.position = len(self)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the number of its samples that all ranks have consumed."""
        samples = self.stream.position * self._order.global_batch // self._order.accumulate
        return {"epoch": self._epoch, "samples": samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the consumed samples, at the same or another world size."""
        self._start_epoch = state["epoch"]
        self._start = state["samples"] * self._order.accumulate // self._order.global_batch
        self.set_epoch(state["epoch"])


class HeldOutLoader:
    """Loader of this rank's batches of a held-out split."""

    def __init__(self, stream: WindowStream[Any], order: HeldOutOrder) -> None:
        self.stream, self._order = stream, order
        self._visits = 0

    @property
    def num_rows(self) -> int:
        """Number of rows in the split, over all ranks."""
        return self._order.num_rows

    def __len__(self) -> int:
        return self._order.num_batches()

    def __iter__(self) -> Iterator[Batch]:
        self._visits += (
            1  # another number per visit, since the next visit's first window is read ahead
        )
        return self.stream.batches(self._visits)


class ShardDataModule(LightningDataModule):
    """Train and validation data of a run, for one rank.

    A batch of a table is (features [B, *feature_shape], labels [B]) and, under
    `data.last_batch=pad`, weights [B]: multiply each row's loss by its weight. Batches of other
    columns are dicts by name, see `ShardStream`.

    Args:
        settings: resolved settings of the run.
        datasets: manifests and shards of the run's datasets, in the order of the mix.
        world: rank of this process.
        verify: when shards are verified against their checksums.
        pin: use page-locked memory, for a GPU.

    Attributes:
        order: order of the training's samples.
        num_epochs: number of epochs.
        total_steps: number of optimiser steps in all epochs.
        packs: record of the blocks or packs, see `packing.describe_packs`; None without
            `data.pack`, and on all ranks but the first.
        batches_per_step: global batches of an optimiser step by epoch; a callback may accumulate some.
    """

    def __init__(
        self, settings: RunSettings, datasets: Sequence[DatasetPlace], world: World, *,
        verify: Policy = "first", pin: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        run_batches = RunBatches(
            datasets, settings, verify=verify, num_sharing=world.local_world_size
        )
        self.manifest = run_batches.manifest
        self._normalize = Normalizer(
            run_batches, settings.data.normalize, model_dtype(settings.precision)
        )
        self._run_batches = run_batches
        trainer = settings.trainer
        self.batches_per_step: Callable[[int], int] = lambda epoch: 1
        stream, self.order = run_batches.train(
            world, num_epochs=trainer.max_epochs, local_rank=world.local_rank, pin=pin
        )
        self.num_epochs = self.order.num_epochs(trainer.max_epochs)
        self.loader = TrainLoader(stream, self.order)
        held_out, order = run_batches.held_out(
            "validation",
            batch=4 * settings.global_batch,
            rank=world.rank,
            world_size=world.world_size,
            local_rank=world.local_rank,
            pin=pin,
            limit=in_rows(
                trainer.overfit_batches or trainer.limit_val_batches, settings.global_batch
            ),
        )
        self._validation = HeldOutLoader(held_out, order)
        self.packs = run_batches.packs() if world.rank == 0 else None
        if self.packs:
            print(sentence_of(self.packs), flush=True)

    @property
    def label_statistics(self) -> FeatureSummary:
        """Statistics of the train rows' labels, see `RunBatches.label_statistics`."""
        return self._run_batches.label_statistics

    @property
    def total_steps(self) -> int:
        """Number of optimiser steps in all epochs."""
        steps, batches = self.order.steps, self.batches_per_step
        return sum(-(-steps(epoch) // batches(epoch)) for epoch in range(self.num_epochs))

    def steps_of(self, num_epochs: int) -> int:
        """Return the number of optimiser steps in the first epochs of a training that does not end before."""
        steps, batches = self.order.epoch_steps, self.batches_per_step
        return sum(-(-steps(epoch) // batches(epoch)) for epoch in range(num_epochs))

    def horizon(self, schedule: Schedule) -> int:
        """Return the optimiser step at which a schedule ends."""
        if schedule.steps is not None:
            return schedule.steps
        return self.total_steps if schedule.epochs is None else self.steps_of(schedule.epochs)

    def train_dataloader(self) -> TrainLoader:
        """Return this rank's train batches; called for each epoch if epochs differ in length."""
        if self.trainer is not None:
            # after the end of a training that resumes there, Lightning asks for a further epoch
            self.loader.set_epoch(min(self.trainer.current_epoch, self.num_epochs - 1))
        return self.loader

    def val_dataloader(self) -> HeldOutLoader:
        """Return this rank's validation batches."""
        return self._validation

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise a batch on the device where it is used."""
        return self._normalize.batch(batch)


def model_dtype(precision: str) -> torch.dtype:
    """Return the floating type of a model's inputs under a `precision` setting."""
    return _TYPES.get(precision, torch.float32)


def evaluated_dtype(precision: str) -> torch.dtype:
    """Return the floating type in which a sealed model is evaluated by `forward`."""
    found = model_dtype(precision)
    return found if is_narrow(found) else torch.float32


_TYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
