"""Choice of the best weights, which are sealed as the result of a run.

Only weights that were validated may be sealed. Callbacks and models may exchange weights for a validation: Lightning's
`EMAWeightAveraging` inserts its averages before the validation, and removes them in `on_validation_epoch_end`, before
the metric is known. So the first of all callbacks copies exchanged weights in this hook, and keeps them if the metric
is among the best.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor

from shardline.checkpoints.averaging import check_averaging, has_stochastic, refresh_statistics
from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.first_batch import FirstBatch, FirstBatchRecord
from shardline.checkpoints.own_checkpoints import with_paths
from shardline.checkpoints.sharded import gather_weights
from shardline.checkpoints.weights import (
    Fingerprint,
    changed,
    fingerprint,
    plain_name,
    watched_weights,
)
from shardline.checkpoints.writer import Weights
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import State, validate_again

_WITHIN = ("on_validation_batch_start", "validation_step", "on_validation_batch_end")
_BEHIND = ("on_validation_epoch_end", "on_validation_end")


class ValidatedWeights(Callback):
    """Callback that records the weights used by a validation. It must precede callbacks that change weights.

    Attributes:
        first_batch: Recorder of the validation's first batch.
    """

    def __init__(self) -> None:
        self.first_batch = FirstBatch()
        self._before: Fingerprint = {}
        self._at_first_batch: Fingerprint = {}
        self._seen: Fingerprint = {}
        self._at_end: Fingerprint = {}
        self._exchanged: Weights = {}
        self._has_compared_ranks = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check all callbacks, including those of the model.

        Raises:
            ConfigError: A callback averages weights in a way that cannot be resumed or sealed.
        """
        is_sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        check_averaging(trainer.callbacks, pl_module, is_sharded=is_sharded)  # type: ignore[attr-defined]
        # random numbers for the first batch are drawn after this hook
        after_hook(
            pl_module,
            "on_validation_epoch_start",
            lambda: self.first_batch.begin(trainer, pl_module),
        )

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the weights before any exchange."""
        self._exchanged, self._at_first_batch = {}, {}
        self._before = fingerprint(watched_weights(pl_module))

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Record the weights and results of the first batch."""
        if batch_idx == 0 and dataloader_idx == 0:
            self._at_first_batch = fingerprint(watched_weights(pl_module))
            self.first_batch.end(trainer, pl_module, outputs)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy weights that were exchanged for the validation, before they are removed.

        Raises:
            ConfigError: Parameters changed between the first and the last batch.
        """
        weights = watched_weights(pl_module)
        self._seen = fingerprint(weights)
        parameters = _parameters(pl_module)
        late = [name for name in changed(self._at_first_batch, self._seen) if name in parameters]
        if late:
            raise ConfigError(
                f"the validation at step {trainer.global_step} used more than one model: parameter {late[0]} "
                f"changed between the first and the last batch, expected the same weights for all batches; "
                f"check {_named(trainer, _WITHIN)}"
            )
        self._copy_exchanged(trainer, weights)
        if trainer.world_size > 1 and not self._has_compared_ranks:
            self._compare_ranks(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the weights of the last step, if a callback may replace them by averages."""
        if has_stochastic(trainer):
            self._at_end = fingerprint(watched_weights(pl_module))

    def end_training(self, trainer: pl.Trainer) -> bool:
        """Validate again if averages replaced the weights after the last validation. Each rank calls this.

        Returns:
            Whether there was such a validation.
        """
        if not self._at_end:
            return False
        module = trainer.lightning_module
        now = fingerprint(watched_weights(module))
        is_changed = not _parameters(module).isdisjoint(changed(self._at_end, now))
        if not trainer.strategy.reduce_boolean_decision(is_changed, all=False):
            return False  # the training was stopped before the averages
        refresh_statistics(trainer)
        validate_again(trainer)
        return True

    def _copy_exchanged(self, trainer: pl.Trainer, weights: Weights) -> None:
        names = changed(self._seen, self._before)
        module = trainer.lightning_module
        if _is_sharded(module):
            flag = torch.tensor([len(names)], device=trainer.strategy.root_device)
            dist.all_reduce(flag)  # all ranks gather, or none
            self._exchanged = gather_weights(module) if int(flag) else {}
        elif trainer.is_global_zero:
            self._exchanged = {name: weights[name].detach().to("cpu", copy=True) for name in names}

    def _compare_ranks(self, trainer: pl.Trainer) -> None:
        """Warn about weights and buffers that differ between rank 0, whose values are sealed, and other ranks."""
        self._has_compared_ranks = True
        if _is_sharded(trainer.lightning_module):
            return
        first = trainer.strategy.broadcast(self._seen)
        found: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(found, changed(first, self._seen))
        names = sorted({name for one in found for name in one})
        if names and trainer.is_global_zero:
            print(
                f"warning: {', '.join(names[:3])}{' ...' * (len(names) > 3)} differ between ranks in the validation, "
                "and only the values of rank 0 are sealed; for running statistics, use torch.nn.SyncBatchNorm in "
                "the model, or average them at the end of an epoch",
                flush=True,
            )

    # ---- when the metric is among the best

    def weights(self, trainer: pl.Trainer) -> Weights:
        """Return the validated whole weights on the CPU, on rank 0. Every rank calls this.

        A buffer set by hooks at the end of the validation, such as a threshold, has its new value.

        Raises:
            ConfigError: Parameters changed after the last batch and were not exchanged for the validation.
        """
        module = trainer.lightning_module
        weights = gather_weights(module)
        if not self._seen:
            return weights
        now = fingerprint(watched_weights(module))
        parameters = _parameters(module)
        for name in changed(self._seen, now):
            is_back = now.get(name) == self._before.get(name)
            if name in self._exchanged and (is_back or name in parameters):
                weights[name] = self._exchanged[name]
            elif name in parameters and trainer.is_global_zero:
                raise ConfigError(
                    f"parameter {name} changed after the last batch of the validation at step {trainer.global_step}, "
                    "expected no change, since validated weights are sealed; "
                    f"change parameters during the training, or make {name} a buffer; "
                    f"check {_named(trainer, _BEHIND)}"
                )
        return weights


def _parameters(module: pl.LightningModule) -> set[str]:
    return {plain_name(name) for name, _ in module.named_parameters(remove_duplicate=False)}


def _is_sharded(module: pl.LightningModule) -> bool:
    return any(isinstance(value, DTensor) for value in module.parameters())


def _named(trainer: pl.Trainer, hooks: Sequence[str]) -> str:
    """Return the user's callbacks and model that define one of these hooks, for messages."""
    found = [
        f"{type(owner).__name__}.{hook}"
        for owner in (*trainer.callbacks, trainer.lightning_module)  # type: ignore[attr-defined]
        for hook in hooks
        if not type(owner).__module__.startswith("shardline.") and _defines(owner, hook)
    ]
    return " and ".join(found) or f"the callers of {' or '.join(hooks)}"


def _defines(owner: Any, hook: str) -> bool:
    function = getattr(type(owner), hook, None)
    # both package names of Lightning
    bases = ("callbacks.callback", "core.hooks", "core.module")
    return function is not None and not function.__module__.endswith(bases)


class BestCheckpoint(ModelCheckpoint):
    """Callback that chooses the best weights by a logged metric, after each validation.

    The callback only copies the weights. The next training checkpoint writes them to disk. They are
    removed when no training checkpoint on disk lists them.

    Args:
        folder: Folder of the weights.
        validated: Callback that records the validated weights.

    Attributes:
        records: Record of the first batch of the validation, by file name of the best weights.
        recorded_here: File names with a record of this process.
    """

    FILE_EXTENSION = ".safetensors"
    on_train_batch_end = None  # type: ignore[assignment]  # not called: only a validation chooses

    def __init__(
        self, folder: Path, validated: ValidatedWeights, *, monitor: str, mode: str, top_k: int
    ) -> None:
        super().__init__(
            dirpath=folder,
            filename="best-{epoch:04d}-{step:08d}",
            monitor=monitor,
            mode=mode,
            save_top_k=top_k,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        self._validated = validated
        self._new: dict[str, Weights] = {}
        self.records: dict[str, FirstBatchRecord] = {}
        self.recorded_here: set[str] = set()

    @property
    def names(self) -> set[str]:
        """File names of the best weights."""
        return {Path(path).name for path in self.best_k_models}

    @property
    def has_new(self) -> bool:
        """Whether there are best weights that are not in a training checkpoint yet."""
        return bool(self._new)

    def end_training(self, trainer: pl.Trainer) -> bool:
        """Validate averages that replaced the weights at the end of the training, and choose them if best.

        Returns:
            Whether there are such averages.
        """
        self._last_global_step_saved = 0  # else Lightning would not choose again at this step
        return self._validated.end_training(trainer)

    def take_new(self) -> dict[str, Weights]:
        """Return the best weights that are not in a training checkpoint yet, by file name."""
        new, self._new = self._new, {}
        return new

    def state_dict(self) -> State:
        """Return the state with file names instead of paths, since a store may be mounted elsewhere later."""
        state = with_paths(super().state_dict(), lambda path: Path(path).name)
        return {
            **state,
            "first_batches": {name: self.records[name] for name in sorted(self.records)},
        }

    def load_state_dict(self, state_dict: State) -> None:
        """Restore a state, with paths in the present folder."""
        folder = Path(str(self.dirpath))
        state = with_paths(state_dict, lambda path: str(folder / path))
        super().load_state_dict({**state, "dirpath": self.dirpath})
        self.current_score = state["current_score"]
        self.records = dict(state["first_batches"])

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        # all ranks call this, since under FSDP each rank has a part of the weights
        weights = self._validated.weights(trainer)
        name = Path(filepath).name
        self._new[name] = {key: weights[key].contiguous() for key in sorted(weights)}
        self.records = {key: one for key, one in self.records.items() if key in self.names}
        self.recorded_here.add(name)
        if record := self._validated.first_batch.record:
            self.records[name] = record
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Do nothing: an older state may still list the file, so the writer removes it."""
