"""Watch the training loss without waiting for it, and roll back after a bad step.

At the end of each optimiser step the ranks start an all-reduce of the worst loss. They read the
result one step later (on a GPU two steps later), or before a validation or save. So all ranks act at
the same step.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.folder import last_step
from shardline.checkpoints.kept import discard_from
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
    """A step was bad; raised on all ranks at the same step."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.place)
        self.trouble = trouble


class LossWatch(Callback):
    """Raises `RollbackRequired` if the training loss is bad on any rank, or a weight is not finite.

    This callback must come before all callbacks that save, so that no bad state is saved.

    Args:
        max_loss: Losses above this number are bad; None: only NaN and infinite losses are.
        agreement: All-reduce of the ranks' losses.
    """

    def __init__(self, max_loss: float | None, agreement: StepAllReduce) -> None:
        self._max_loss, self._agreement = max_loss, agreement
        self._worst: float | torch.Tensor = NO_LOSS
        self._lr: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the learning rate before each step, since schedules change it before the step ends."""
        self._agreement.start(trainer.strategy.root_device)
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(self._note_lr)

    def _note_lr(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Add a batch's loss; at the end of a step, check the loss of the step before."""
        returned = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        loss = None if LEFT_OUT in returned else returned.get("loss")
        if isinstance(loss, torch.Tensor):
            # Lightning has divided the loss by the number of accumulated batches
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
        """Check loss and weights before a validation, so that no bad weights are chosen."""
        self._check_all(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check loss and weights at the end of an epoch."""
        self._check_all(trainer)

    def look(self) -> None:
        """Wait for the losses of the last steps and check them.

        Raises:
            RollbackRequired: A loss is bad; raised on all ranks.
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
        """Return whether the current state may be saved; all ranks call this at the end of a step.

        Bad weights after a good loss raise no error in mid-epoch. The next loss raises it, so the
        step of the rollback does not depend on how often states are saved.

        Raises:
            RollbackRequired: The last loss is bad.
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
        # for sharded weights, this rank's part
        held = [getattr(p, "to_local", p.detach)() for p in trainer.lightning_module.parameters()]
        if not held:
            return True
        good = torch.stack([torch.isfinite(part).all() for part in held]).all().int()
        if trainer.world_size > 1:  # each rank may have only a part of the weights
            dist.all_reduce(good, dist.ReduceOp.MIN)
        return bool(good)


def _worse(worst: float | torch.Tensor, loss: torch.Tensor, parts: int) -> float | torch.Tensor:
    """Return the worse of two losses: the larger one, or NaN if either is NaN."""
    if loss.is_cuda:  # stays on the GPU, so that the program does not wait
        seen = torch.nan_to_num(
            loss.float() * parts, nan=math.nan, posinf=math.inf, neginf=math.inf
        )
        return seen if isinstance(worst, float) else torch.maximum(worst, seen)
    value = (loss.float() if parts == 1 else loss.float() * parts).item()
    value = math.inf if math.isinf(value) else value
    return value if math.isnan(value) or value > worst else worst


def check_policy(settings: RunSettings, model: pl.LightningModule, name: str) -> None:
    """Reject settings that do not work with manual optimisation.

    Raises:
        ConfigError: The message names the run, the setting and the remedy.
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
                f'run "{name}": {key}={value}, but {type(model).__name__} uses manual optimisation '
                f"(automatic_optimization=False); use {key}={remedy}"
            )


def intervene(spec: RunSpec, world: World, plan: Plan, trouble: Trouble, work: Path) -> Plan:
    """Decide on an intervention after a bad step, and write it to disk before training continues.

    Later training checkpoints are deleted first. If the job is killed between the two, the resumed
    training meets the same bad step again.

    Args:
        work: The run's folder in the store.

    Returns:
        The plan for all further steps, the same on all ranks.

    Raises:
        Diverged: The training ends; the message names step, epoch, loss, learning rate, the last
            good training checkpoint and the remedies.
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
        f"the last good training checkpoint is from step {step}"
        if step
        else "there is no earlier training checkpoint"
    )
    return (
        f"{good}; check the samples of the bad step, lower optim.lr, set trainer.gradient_clip, or set "
        "divergence.policy to skip such steps or to lower the learning rate"
    )
