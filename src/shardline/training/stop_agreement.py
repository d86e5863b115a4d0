"""Stop a training in order: once any rank is asked to stop, all ranks save at the same step and end."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.boundaries import after_batch, can_save
from shardline.checkpoints.manager import CheckpointManager
from shardline.core.errors import Stopped
from shardline.core.lightning_compat import ignore_signals
from shardline.core.world import World
from shardline.supervision import signals
from shardline.training.step_all_reduce import NO_LOSS, StepAllReduce
from shardline_io.heartbeat_memory import mine


class AgreedStop(Callback):
    """Saves and ends a training that was asked to stop, on all ranks at the same step.

    Stop requests are part of each step's all-reduce, which is read at the end of the next step. So
    all ranks act at the second step boundary after the first request (on GPUs the third). Between
    two epochs they agree at once. A training that has done all of its steps is sealed.

    Args:
        world: This rank's place in the job.
        checkpoints: Callback that saves the state; must come before this callback.
        agreement: All-reduce of the ranks at each step.
    """

    def __init__(
        self, world: World, checkpoints: CheckpointManager, agreement: StepAllReduce
    ) -> None:
        self._is_alone = world.world_size == 1
        self._checkpoints, self._agreement = checkpoints, agreement

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Act after the model's own hook, and disable Lightning's signal handlers."""
        ignore_signals(trainer)
        after_batch(trainer, pl_module, lambda: self._end_batch(trainer))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Allow stops to save from now on."""
        signals.can_save()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check for stop requests between two epochs and before the first step."""
        if not self._is_alone and not self._agreement.stop_reason:
            place = {"step": trainer.global_step, "epoch": trainer.current_epoch}
            self._agreement.begin(NO_LOSS, lr=None, **place)
            self._agreement.read_all()
        self._stop_if_asked(trainer)

    def _end_batch(self, trainer: pl.Trainer) -> None:
        if can_save(trainer):
            self._stop_if_asked(trainer)

    def _stop_if_asked(self, trainer: pl.Trainer) -> None:
        reason = mine().stop_reason() if self._is_alone else self._agreement.stop_reason
        if not reason:
            return
        if trainer.global_step:
            self._checkpoints.save(trainer, wait=True)
        raise Stopped(reason, self._checkpoints.step_saved())


class StepsDone(Exception):
    """The training has done its requested number of steps."""


class EndAfter(Callback):
    """Ends a training before step `steps` + 1 begins, after all logged metrics were written.

    Lightning's own `max_steps` would change the length of a model's schedules.

    Args:
        steps: Number of optimiser steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Raise StepsDone, on all ranks at the same step."""
        if trainer.global_step >= self._steps:
            raise StepsDone
