"""How an optimiser step is done: seeded alike on any number of ranks, and by the run's plan.

A global batch is cut into micro-batches, whose places in it are its *slots*: rank r of the ranks,
in its p-th of `accumulate` parts, has slot r * accumulate + p. Fewer ranks take more parts each.
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

LEFT_OUT = "left_out"  # in the output of a training step that was


class StepSeeds(Callback):
    """Seeds every micro-batch from (seed, epoch, step of the epoch, slot).

    Randomness in a step is then a function of which samples it is drawn for: a resumed
    training draws what an uninterrupted one draws, on as many ranks or on fewer.

    Args:
        rank: this rank.
        accumulate: parts into which a rank splits its share of a global batch.
    """

    def __init__(self, seed: int, rank: int, accumulate: int) -> None:
        self._seed, self._rank, self._accumulate = seed, rank, accumulate
        self._generators = [torch.default_generator]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the generators in use: `torch.manual_seed` takes a fifth of a small model's step."""
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
        """Return what Lightning's counts of batches are to be read with."""
        return {"accumulate": self._accumulate}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count micro-batches as this many ranks do, where others have saved the state."""
        saved_with = checkpoint["callbacks"][self.state_key]["accumulate"]
        counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for count in (counts["total"], counts["current"]):
            count.update(rescaled(count, saved_with, self._accumulate))


class OptimizerSteps(Callback):
    """Does each optimiser step by the run's plan.

    The samples of a step that is left out are consumed, but not looked at: neither weights nor
    statistics of the data within the model learn from them. Schedules and counts go on.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lrs: list[Any] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the optimisers ask for each step's learning rate."""
        for optimizer in trainer.optimizers if self._plan.interventions else ():
            optimizer.register_step_pre_hook(partial(self._lower, trainer))
            optimizer.register_step_post_hook(self._restore)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Put a loss that leads nowhere in the place of the model's."""
        if self._plan.skips(trainer.global_step + 1):
            pl_module.training_step = partial(_left_out, pl_module)  # type: ignore[method-assign]

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Without gradients an optimiser changes neither weights nor its own state."""
        if self._plan.skips(trainer.global_step + 1):
            optimizer.zero_grad(set_to_none=True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Give the model its own training step back, and nothing to log of this one."""
        if pl_module.__dict__.pop("training_step", None) is not None:
            drop_step_values(trainer)

    def _lower(self, trainer: pl.Trainer, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # for this step alone: schedules that go on from the present rate would add to it
        factor = self._plan.lr_factor(trainer.global_step + 1)
        self._lrs = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, lr in zip(optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr


def _left_out(model: pl.LightningModule, *_: Any) -> dict[str, Any]:
    """Return a loss that every weight takes part in, as the ranks' exchange of gradients expects."""
    parts = [p.sum() for p in model.parameters() if p.requires_grad]
    return {"loss": torch.stack(parts).sum() * 0.0, LEFT_OUT: True}


def rescaled(counts: Mapping[str, int], before: int, now: int) -> dict[str, int]:
    """Return counts of micro-batches, saved at a step's end, at another number of them a step.

    Args:
        counts: `ready` ones, a whole number of steps, and those that got further: the last
            one may not be `completed` yet.
    """
    ready = counts["ready"] // before * now
    return {name: ready - (counts["ready"] - value) for name, value in counts.items()}
