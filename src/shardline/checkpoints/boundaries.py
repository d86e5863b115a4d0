"""Points at which a training can be saved, when to save, and the loop counts of a saved state.

A state is saved inside a hook, when Lightning has counted an epoch or batch as started but not as
completed. Lightning 2.6 corrects only part of these counts (`FitLoop.reset`, `reset_on_restart`).
After a state between two epochs, it counts one epoch too few as `current.ready`, and takes the next
such state for the end of an epoch. After a later state in mid-epoch, it calls the hooks at the start
of an epoch twice. So `settle` derives all counts from two that are always right: completed epochs
and ready batches.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from shardline.core.lightning_compat import State, is_accumulating, may_end_early
from shardline.core.lightning_validations import Validations

_LONGEST_WAIT = 50  # steps


def can_save(trainer: pl.Trainer) -> bool:
    """Return whether a state can be saved now: not in an accumulation, epoch end or validation.

    In mid-epoch a state is saved at the end of a batch or, if a validation follows the batch, behind it.
    """
    loop = trainer.fit_loop.epoch_loop
    if not is_in_epoch(trainer):
        epochs: Any = trainer.fit_loop.epoch_progress.total
        return bool(epochs.started == epochs.completed)
    batch: Any = loop.batch_progress.current
    validations = Validations.of(trainer)
    is_done = is_behind_validation(trainer)
    if not is_done:  # at the batch's end, unless a validation follows
        is_done = batch.processed > batch.completed and not (validations and validations.is_due())
    is_last = trainer.is_last_batch or (trainer.should_stop and may_end_early(trainer))
    return is_done and not is_last and not is_accumulating(trainer)


def is_in_epoch(trainer: pl.Trainer) -> bool:
    """Return whether an epoch has begun and its last batch is not processed."""
    epochs: Any = trainer.fit_loop.epoch_progress.total
    return bool(epochs.started > epochs.processed)


def is_behind_validation(trainer: pl.Trainer) -> bool:
    """Return whether a validation in mid-epoch was just done; Lightning has then recorded the batch."""
    validations = Validations.of(trainer)
    return bool(validations and validations.is_behind)


def after_hook(module: pl.LightningModule, name: str, call: Callable[[], None]) -> None:
    """Wrap a hook of the model, so that `call` runs after the hook."""
    hook = getattr(module, name)

    @wraps(hook)
    def hook_and_call(*args: Any, **kwargs: Any) -> Any:
        found = hook(*args, **kwargs)
        call()
        return found

    setattr(module, name, hook_and_call)


def after_batch(trainer: pl.Trainer, module: pl.LightningModule, call: Callable[[], None]) -> None:
    """Run `call` after all hooks of each batch, and again behind a validation that follows the batch."""
    after_hook(module, "on_train_batch_end", call)
    if validations := Validations.of(trainer):
        validations.call_behind(call)


class Cadence:
    """Interval between two saves, in optimizer steps or seconds, whichever comes first.

    Each rank counts its steps. Rank 0 measures time, and broadcasts the number of steps until the
    next broadcast: half of the steps it expects until the save. So a save costs about ten
    small broadcasts, for any number of steps between two saves.

    Args:
        every_steps: Save after each multiple of this number of steps; 0 for never.
        every_s: Seconds between two saves; 0 for never.
    """

    def __init__(self, every_steps: int, every_s: float) -> None:
        self.every_steps, self.every_s = every_steps, every_s
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start counting at this step, after a save or resume."""
        self._step, self._time, self._ask_at = step, time.monotonic(), step + 1

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Return whether to save now. All ranks call this at the same steps."""
        step = trainer.global_step
        if self.every_steps and step // self.every_steps > self._step // self.every_steps:
            return True
        if not self.every_s or step < self._ask_at:
            return False
        wait = self._steps_to_wait(step) if trainer.is_global_zero else 0
        if trainer.world_size > 1:
            shared = torch.tensor([wait], device=trainer.strategy.root_device)
            dist.broadcast(shared, src=0)
            wait = int(shared)
        self._ask_at = step + wait
        return wait == 0

    def _steps_to_wait(self, step: int) -> int:
        past_s = time.monotonic() - self._time
        if past_s >= self.every_s:
            return 0
        step_s = past_s / max(1, step - self._step)
        return min(max(1, int((self.every_s - past_s) / step_s / 2)), _LONGEST_WAIT)


@dataclass(frozen=True, kw_only=True)
class Milestones:
    """When a training saves a state that stays.

    Attributes:
        epochs: Numbers of completed epochs; the state is saved between two epochs, or at the end.
        steps: Numbers of optimizer steps; the state is saved behind the hooks of the step.
    """

    epochs: frozenset[int] = frozenset()
    steps: frozenset[int] = frozenset()

    def is_due(self, trainer: pl.Trainer, saved_step: int) -> bool:
        """Return whether the present state stays.

        Args:
            saved_step: Step of the last saved state. A model with several optimizers may pass a step without a state.
        """
        if not is_in_epoch(trainer) and trainer.current_epoch in self.epochs:
            return True
        return any(saved_step < step <= trainer.global_step for step in self.steps)


NO_MILESTONES = Milestones()


def settle(checkpoint: State, *, is_mid_epoch: bool) -> None:
    """Correct the loop counts of a state.

    A state between two epochs resumes before the next epoch, so Lightning begins that epoch as
    usual. A state in mid-epoch resumes after the batch at whose end it was saved.

    Args:
        checkpoint: Checkpoint from Lightning; changed in place.
        is_mid_epoch: Whether the state was saved in mid-epoch.
    """
    counts = checkpoint["loops"]["fit_loop"]
    epochs, batches = counts["epoch_progress"], counts["epoch_loop.batch_progress"]
    for count in epochs.values():
        done = count["completed"]
        count.update(ready=done + is_mid_epoch, started=done + is_mid_epoch, processed=done)
    if is_mid_epoch:
        for count in (batches["total"], batches["current"]):
            ready = count["ready"]
            count.update(started=ready, processed=ready, completed=ready - 1)


def steps_recorded(checkpoint: State, *, is_mid_epoch: bool) -> int:
    """Return the step recorded with the last metrics before a state.

    For metrics, Lightning counts batches that completed an accumulation, not optimizer calls: a
    model may have several optimizers.
    """
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    return int(counts["_batches_that_stepped"]) + is_mid_epoch
