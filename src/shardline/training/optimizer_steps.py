"""Seed micro-batches independently of the number of ranks, and apply a run's interventions to steps.

A global batch is split into micro-batches, each with a *slot* (its index in the global batch): the
p-th of `accumulate` micro-batches of rank r has slot r * accumulate + p.
"""

import hashlib
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from shardline.core.lightning_compat import drop_step_values
from shardline.training.interventions import Plan

LEFT_OUT = "left_out"  # key in the output of a skipped training step


class StepSeeds(Callback):
    """Seeds every micro-batch from (seed, epoch, step of the epoch, slot).

    So a resumed training draws the same random numbers as an uninterrupted training, on the same
    number of ranks or fewer.

    Args:
        seed: Seed of the run.
        rank: This rank.
        accumulate: Number of micro-batches of a step on this rank.
    """

    def __init__(self, seed: int, rank: int, accumulate: int) -> None:
        self._seed, self._rank, self._accumulate = seed, rank, accumulate
        self._generators = [torch.default_generator]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look up the generators: `torch.manual_seed` would take a fifth of a small model's step."""
        device = trainer.strategy.root_device
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index])

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed Python, NumPy and torch for one micro-batch."""
        step, part = divmod(batch_idx, self._accumulate)
        slot = self._rank * self._accumulate + part
        text = f"{self._seed}/{trainer.current_epoch}/{step}/{slot}"
        value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        random.seed(value)
        np.random.seed(value)
        for generator in self._generators:
            generator.manual_seed(value)

    def state_dict(self) -> dict[str, int]:
        """Return `accumulate`, by which Lightning's batch counts are rescaled on resume."""
        return {"accumulate": self._accumulate}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Rescale the counts of micro-batches if another number of ranks saved the state."""
        saved_with = checkpoint["callbacks"][self.state_key]["accumulate"]
        counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for count in (counts["total"], counts["current"]):
            count.update(rescaled(count, saved_with, self._accumulate))


class OptimizerSteps(Callback):
    """Applies a plan of interventions to each optimiser step.

    A skipped step consumes its samples without a forward pass, so neither weights nor running
    statistics change. Schedules and step counts continue.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lrs: list[Any] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Register hooks that lower the learning rate for single steps."""
        for optimizer in trainer.optimizers if self._plan.interventions else ():
            optimizer.register_step_pre_hook(partial(self._lower, trainer))
            optimizer.register_step_post_hook(self._restore)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Replace the model's training step by a constant loss, if the step is skipped."""
        if self._plan.skips(trainer.global_step + 1):
            pl_module.training_step = partial(_left_out, pl_module)  # type: ignore[method-assign]

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Remove the gradients of a skipped step, so the optimiser changes neither weights nor state."""
        if self._plan.skips(trainer.global_step + 1):
            optimizer.zero_grad(set_to_none=True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Restore the model's training step, and drop the logged values of a skipped step."""
        if pl_module.__dict__.pop("training_step", None) is not None:
            drop_step_values(trainer)

    def _lower(self, trainer: pl.Trainer, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # restored after the step, since some schedules compute the next rate from the current one
        factor = self._plan.lr_factor(trainer.global_step + 1)
        self._lrs = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, lr in zip(optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr


def _left_out(model: pl.LightningModule, *_: Any) -> dict[str, torch.Tensor | bool]:
    """Return a zero loss that depends on every weight, as the ranks' gradient all-reduce requires."""
    parts = [p.sum() for p in model.parameters() if p.requires_grad]
    return {"loss": torch.stack(parts).sum() * 0.0, LEFT_OUT: True}


def rescaled(counts: Mapping[str, int], before: int, now: int) -> dict[str, int]:
    """Convert counts of micro-batches to another number of micro-batches per step.

    Args:
        counts: Lightning's counts at the end of a step. `ready` is a whole number of steps; the
            last micro-batch may not be `completed` yet.
        before: Micro-batches per step when the counts were saved.
        now: Micro-batches per step now.
    """
    ready = counts["ready"] // before * now
    return {name: ready - (counts["ready"] - value) for name, value in counts.items()}
