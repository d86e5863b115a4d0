"""Watches a training's loss, without waiting for it, and goes back where it is bad.

At the end of each optimiser step the ranks begin to agree on the worst of it, and look at what they
agreed on one step later (two on a GPU, where the loss stays until then), or before a validation or a
save: all of them at the same step.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.folder import discard_from, last_step
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import is_accumulating
from shardline.core.world import World
from shardline.records.measured import Trouble
from shardline.training.interventions import Plan, write_plan
from shardline.training.optimizer_steps import LEFT_OUT
from shardline.training.step_all_reduce import NO_LOSS, Reading, StepAllReduce


class RollbackRequired(Exception):
    """Raised on all ranks at the same step, once a step is known to be bad."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.place)
        self.trouble = trouble


class LossWatch(Callback):
    """Raises `RollbackRequired` where the training loss is bad on any rank, or the weights are.

    Comes before all callbacks that save: a state whose own step is bad is not saved.

    Args:
        max_loss: a loss above it is bad; None: only one that is NaN or infinite is.
        agreement: brings the ranks' losses together.
    """

    def __init__(self, max_loss: float | None, agreement: StepAllReduce) -> None:
        self._max_loss, self._agreement = max_loss, agreement
        self._worst: float | torch.Tensor = NO_LOSS
        self._lr: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the optimisers tell their learning rate, which schedules have changed when a step ends."""
        self._agreement.start(trainer.strategy.root_device)
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(self._note_lr)

    def _note_lr(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Take in a batch's loss; at a step's end look at that of the step before."""
        returned = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        loss = None if LEFT_OUT in returned else returned.get("loss")
        if isinstance(loss, torch.Tensor):
            # Lightning has divided it for the sum over the parts
            self._worst = _worse(self._worst, loss.detach(), trainer.accumulate_grad_batches)
        if is_accumulating(trainer):
            return
        if reading := self._agreement.read():
            self._act_on(reading)
        self._agreement.begin(
            self._worst, step=trainer.global_step, epoch=trainer.current_epoch, lr=self._lr
        )
        self._worst = NO_LOSS

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose among good weights only."""
        self._check_all(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End an epoch with good weights only."""
        self._check_all(trainer)

    def look(self) -> None:
        """Wait for what the ranks agree on of the last steps.

        Raises:
            RollbackRequired: one is bad; on all ranks.
        """
        for reading in self._agreement.read_all():
            self._act_on(reading)

    def _act_on(self, reading: Reading) -> None:
        if not self._is_bad(reading.largest):
            return
        losses: list[Any] = [reading.own]
        if dist.is_initialized():
            losses = [None] * dist.get_world_size()
            dist.all_gather_object(losses, reading.own)
        rank, loss = max(
            ((rank, loss) for rank, loss in enumerate(losses) if self._is_bad(loss)),
            key=lambda found: (math.isnan(found[1]), found[1]),
        )
        lr = None if reading.lr is None else float(reading.lr)
        cause = f"the training loss is {self._name(loss)}"
        raise RollbackRequired(
            Trouble(step=reading.step, epoch=reading.epoch, rank=rank, cause=cause, lr=lr)
        )

    def may_save(self, trainer: pl.Trainer) -> bool:
        """Return whether the present state is good; asked by all ranks, at a step's end.

        Weights that are bad after a good loss are not acted upon in mid-epoch: the next loss
        tells, at the same step however often states are saved.

        Raises:
            RollbackRequired: the last loss is bad.
        """
        self.look()
        return self._has_good_weights(trainer)

    def _check_all(self, trainer: pl.Trainer) -> None:
        self.look()
        if not self._has_good_weights(trainer):
            lr = None if self._lr is None else float(self._lr)
            raise RollbackRequired(
                Trouble(
                    step=trainer.global_step,
                    epoch=trainer.current_epoch,
                    rank=0,
                    cause="weights are NaN or infinite",
                    lr=lr,
                )
            )

    def _is_bad(self, loss: float) -> bool:
        limit = math.inf if self._max_loss is None else self._max_loss
        return not math.isfinite(loss) or loss > limit

    def _name(self, loss: float) -> str:
        if not math.isfinite(loss):
            return "NaN" if math.isnan(loss) else "infinite"
        return f"{loss:.6g}, above divergence.max_loss={self._max_loss:g}"

    def _has_good_weights(self, trainer: pl.Trainer) -> bool:
        # of weights that are sharded, what this rank holds
        held = [getattr(p, "to_local", p.detach)() for p in trainer.lightning_module.parameters()]
        if not held:
            return True
        good = torch.stack([torch.isfinite(part).all() for part in held]).all().int()
        if trainer.world_size > 1:  # each rank may hold a part of them alone
            dist.all_reduce(good, dist.ReduceOp.MIN)
        return bool(good)


def _worse(worst: float | torch.Tensor, loss: torch.Tensor, parts: int) -> float | torch.Tensor:
    """Return the worse of a step's losses so far and one more; NaN goes before all others."""
    if loss.is_cuda:  # which is not waited for
        seen = torch.nan_to_num(
            loss.float() * parts, nan=math.nan, posinf=math.inf, neginf=math.inf
        )
        return seen if isinstance(worst, float) else torch.maximum(worst, seen)
    value = (loss.float() if parts == 1 else loss.float() * parts).item()
    value = math.inf if math.isinf(value) else value
    return value if math.isnan(value) or value > worst else worst


def check_policy(settings: RunSettings, model: pl.LightningModule, name: str) -> None:
    """Refuse what a model that takes its optimiser steps itself cannot follow.

    Raises:
        ConfigError: names the run, the setting and the remedy.
    """
    if model.automatic_optimization:
        return
    policy = settings.divergence.policy
    for key, value, remedy in (
        ("divergence.policy", policy if policy != "stop" else "", "stop"),
        ("elastic", "true" if settings.elastic else "", "false"),
    ):
        if value:
            raise ConfigError(
                f'run "{name}": {key}={value}, but {type(model).__name__} takes its optimiser steps itself '
                f"(automatic_optimization=False); use {key}={remedy}"
            )


def intervene(spec: RunSpec, world: World, plan: Plan, trouble: Trouble, work: Path) -> Plan:
    """Decide what is done about a bad step, and bring that to disk before anything else happens.

    Later training checkpoints go first: they were made before the decision. A kill in between
    then only lets the same trouble be seen again.

    Args:
        work: the run's folder in the store.

    Returns:
        How each step is done from now on, the same on all ranks.

    Raises:
        Diverged: the training ends; names step, epoch, loss, learning rate, the last good
            training checkpoint and the remedies.
    """
    settings, saved = spec.settings.divergence, work / "checkpoints"
    plan = plan.extended(trouble, settings, _remedy(last_step(saved)), spec.title)
    done = plan.interventions[-1]
    if world.rank == 0:
        discard_from(saved, done.first)
        write_plan(work, spec.identity, plan)
        count = f"{len(plan.interventions)} of {settings.limit} interventions"
        print(f"{done} ({count}); going back to step {last_step(saved)}", flush=True)
    if world.world_size > 1:
        dist.barrier()
    return plan


def _remedy(step: int) -> str:
    good = (
        f"the last good training checkpoint is that of step {step}"
        if step
        else ("there is no training checkpoint from before")
    )
    return (
        f"{good}; look at that step's samples, lower optim.lr, set trainer.gradient_clip, or have "
        "divergence.policy skip such steps or lower the learning rate"
    )
