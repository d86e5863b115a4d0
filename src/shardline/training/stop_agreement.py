"""An orderly stop: once any rank is asked to, all of them save at the same step, and end."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.boundaries import after_hook, can_save
from shardline.checkpoints.manager import CheckpointManager
from shardline.core.errors import Stopped
from shardline.core.lightning_compat import ignore_signals
from shardline.core.world import World
from shardline.supervision import signals
from shardline.training.step_all_reduce import NO_LOSS, StepAllReduce
from shardline_io.heartbeat_memory import mine


class AgreedStop(Callback):
    """Ends a training that was asked to stop, where all ranks agree to save.

    What a rank was asked goes into the agreement on each step, which is read at the next step's
    end: all ranks act at the same step, the second boundary after the first of them was asked (the
    third on GPUs). Between two epochs they agree at once. A training that has done its steps comes
    to no boundary any more, and is sealed.

    Args:
        world: this rank's place.
        checkpoints: saves the state; stands before this callback.
        agreement: of the ranks on each step.
    """

    def __init__(
        self, world: World, checkpoints: CheckpointManager, agreement: StepAllReduce
    ) -> None:
        self._is_alone = world.world_size == 1
        self._checkpoints, self._agreement = checkpoints, agreement

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Come behind the model's own hook, and leave signals to the rank's program."""
        ignore_signals(trainer)
        after_hook(pl_module, "on_train_batch_end", lambda: self._end_batch(trainer))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From now on there is something to save."""
        signals.can_save()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Act between two epochs, and before the first step."""
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
    """A training has done the steps that it was started for."""


class EndAfter(Callback):
    """Ends a training before the step that follows the first `steps`.

    What was logged of them, also at the end of an epoch, has been written then. Lightning's own
    `max_steps` would tell a model's schedules of another length.

    Args:
        steps: optimiser steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Raise StepsDone, on all ranks at the same step."""
        if trainer.global_step >= self._steps:
            raise StepsDone
