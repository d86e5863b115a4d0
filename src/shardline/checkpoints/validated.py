"""The weights that a validation was done with, which are the ones that may be sealed.

Callbacks and models exchange weights for a validation: Lightning's `EMAWeightAveraging` puts its averages in
before it, and takes them out in `on_validation_epoch_end`, before the validation's metric is known. So what was
exchanged is copied there, by the first of all callbacks, and kept if the metric wins.
"""

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor

from shardline.checkpoints.averaging import check_averaging, has_stochastic, refresh_statistics
from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.first_batch import FirstBatch
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
from shardline.core.lightning_compat import validate_again

_WITHIN = ("on_validation_batch_start", "validation_step", "on_validation_batch_end")
_BEHIND = ("on_validation_epoch_end", "on_validation_end")


class ValidatedWeights(Callback):
    """Knows what the present validation is done with; stands before every callback that changes weights.

    Attributes:
        first_batch: what is recorded of the validation's first batch.
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
        """Look at the callbacks that there are, the model's own among them.

        Raises:
            ConfigError: one of them averages weights in a way that cannot be resumed or sealed.
        """
        is_sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        check_averaging(trainer.callbacks, pl_module, is_sharded=is_sharded)  # type: ignore[attr-defined]
        # what draws numbers for the first batch comes behind this hook
        after_hook(
            pl_module,
            "on_validation_epoch_start",
            lambda: self.first_batch.begin(trainer, pl_module),
        )

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the weights before anything is exchanged."""
        self._exchanged, self._at_first_batch = {}, {}
        self._before = fingerprint(watched_weights(pl_module))

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Look at the weights that the first batch was evaluated with, and at what came of it."""
        if batch_idx == 0 and dataloader_idx == 0:
            self._at_first_batch = fingerprint(watched_weights(pl_module))
            self.first_batch.end(trainer, pl_module, outputs)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy what was exchanged for the validation, before anyone takes it out.

        Raises:
            ConfigError: parameters have changed between the first batch and the last one.
        """
        weights = watched_weights(pl_module)
        self._seen = fingerprint(weights)
        if late := _parameters(pl_module, changed(self._at_first_batch, self._seen)):
            raise ConfigError(
                f"the validation at step {trainer.global_step} was done with more than one model: parameter {late[0]} "
                f"changed between its first batch and its last one; expected the same weights for all batches; "
                f"look at {_named(trainer, _WITHIN)}"
            )
        self._copy_exchanged(trainer, weights)
        if trainer.world_size > 1 and not self._has_compared_ranks:
            self._compare_ranks(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the weights that the last step left, where a callback may put averages in."""
        if has_stochastic(trainer):
            self._at_end = fingerprint(watched_weights(pl_module))

    def end_training(self, trainer: pl.Trainer) -> bool:
        """Validate once more where averages were put in behind the last validation; each rank calls this.

        Returns:
            Whether it did.
        """
        if not self._at_end:
            return False
        module = trainer.lightning_module
        now = fingerprint(watched_weights(module))
        is_changed = bool(_parameters(module, changed(self._at_end, now)))
        if not trainer.strategy.reduce_boolean_decision(is_changed, all=False):
            return False  # it was stopped before its averages
        refresh_statistics(trainer)
        validate_again(trainer)
        return True

    def _copy_exchanged(self, trainer: pl.Trainer, weights: Weights) -> None:
        names = changed(self._seen, self._before)
        module = trainer.lightning_module
        if any(isinstance(value, DTensor) for value in module.parameters()):
            flag = torch.tensor([len(names)], device=trainer.strategy.root_device)
            dist.all_reduce(flag)  # all ranks gather, or none
            self._exchanged = gather_weights(module) if int(flag) else {}
        elif trainer.is_global_zero:
            self._exchanged = {name: weights[name].detach().to("cpu", copy=True) for name in names}

    def _compare_ranks(self, trainer: pl.Trainer) -> None:
        """Name what ranks validate with other values of than rank 0, whose own are sealed."""
        self._has_compared_ranks = True
        if any(isinstance(value, DTensor) for value in trainer.lightning_module.parameters()):
            return
        first = trainer.strategy.broadcast(self._seen)
        found: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(found, changed(first, self._seen))
        names = sorted({name for one in found for name in one})
        if names and trainer.is_global_zero:
            print(
                f"warning: ranks validate with values of {', '.join(names[:3])}{' ...' * (len(names) > 3)} that differ "
                "from rank 0's, which are sealed; their part of the validation is of another model (running "
                "statistics: give the model torch.nn.SyncBatchNorm, or average them at the end of an epoch)",
                flush=True,
            )

    # ---- when the metric wins

    def weights(self, trainer: pl.Trainer) -> Weights:
        """Return whole weights on the CPU as the validation has seen them, on rank 0; every rank calls this.

        A buffer that hooks at the validation's end have set, such as a threshold, is as they left it.

        Raises:
            ConfigError: parameters have changed since the last batch that were not exchanged for it.
        """
        module = trainer.lightning_module
        weights = gather_weights(module)
        if not self._seen:
            return weights
        now = fingerprint(watched_weights(module))
        parameters = {
            plain_name(name) for name, _ in module.named_parameters(remove_duplicate=False)
        }
        for name in changed(self._seen, now):
            is_back = now.get(name) == self._before.get(name)
            if name in self._exchanged and (is_back or name in parameters):
                weights[name] = self._exchanged[name]
            elif name in parameters and trainer.is_global_zero:
                raise ConfigError(
                    f"parameter {name} is not what the validation at step {trainer.global_step} was done with: it "
                    "changed after the last batch, and the weights that are validated are the ones that are sealed; "
                    f"change parameters while training, or make {name} a buffer; "
                    f"look at {_named(trainer, _BEHIND)}"
                )
        return weights


def _parameters(module: pl.LightningModule, names: Sequence[str]) -> list[str]:
    own = {plain_name(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    return [name for name in names if name in own]


def _named(trainer: pl.Trainer, hooks: Sequence[str]) -> str:
    """Return which of the user's callbacks, and the model, define any of these hooks."""
    found = [
        f"{type(owner).__name__}.{hook}"
        for owner in (*trainer.callbacks, trainer.lightning_module)  # type: ignore[attr-defined]
        for hook in hooks
        if not type(owner).__module__.startswith("shardline.") and _defines(owner, hook)
    ]
    return " and ".join(found) or f"what calls {' or '.join(hooks)}"


def _defines(owner: Any, hook: str) -> bool:
    function = getattr(type(owner), hook, None)
    # of either copy of Lightning
    bases = ("callbacks.callback", "core.hooks", "core.module")
    return function is not None and not function.__module__.endswith(bases)
