"""Where and when a training is saved: nothing is half done there, and a state has the counts to resume from.

A state is taken inside a hook, where Lightning has counted an epoch or a batch as begun and not yet
as over. Lightning 2.6 completes such counts in part (`FitLoop.reset`, `reset_on_restart`): after a
state between two epochs it counts one epoch too few as `current.ready`, takes the next such state for
one that ended with its epoch, and calls the hooks at an epoch's start twice after the state in mid-epoch
that follows. So all counts follow here from the ones that are always right: how many epochs are
completed, and how many batches are ready.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from shardline.core.lightning_compat import State, is_accumulating

_LONGEST_WAIT = 50  # steps


def can_save(trainer: pl.Trainer) -> bool:
    """Return whether nothing is half done here: no accumulation, epoch's end or validation."""
    loop = trainer.fit_loop.epoch_loop
    if not is_in_epoch(trainer):
        epochs: Any = trainer.fit_loop.epoch_progress.total
        return bool(epochs.started == epochs.completed)
    batch: Any = loop.batch_progress.current
    is_in_batch_end = batch.processed > batch.completed
    is_last = trainer.is_last_batch or trainer.should_stop
    return is_in_batch_end and not is_last and not is_accumulating(trainer)


def is_in_epoch(trainer: pl.Trainer) -> bool:
    """Return whether an epoch has begun whose last batch is not over."""
    epochs: Any = trainer.fit_loop.epoch_progress.total
    return bool(epochs.started > epochs.processed)


def after_hook(module: pl.LightningModule, name: str, call: Callable[[], None]) -> None:
    """Have something called when a hook of the model is over."""
    hook = getattr(module, name)

    @wraps(hook)
    def hook_and_call(*args: Any, **kwargs: Any) -> Any:
        found = hook(*args, **kwargs)
        call()
        return found

    setattr(module, name, hook_and_call)


class Cadence:
    """Every so many optimiser steps or seconds, whichever comes first.

    Each rank counts steps for itself. Time is rank 0's: it tells the others how many steps it
    will not ask them again, half of what it expects to be left, so that a save costs some ten
    small broadcasts, however many steps lie between two.

    Args:
        every_steps: a save is due behind each multiple of it; 0 for never.
        every_s: seconds; 0 for never.
    """

    def __init__(self, every_steps: int, every_s: float) -> None:
        self.every_steps, self.every_s = every_steps, every_s
        self.begin(0)

    def begin(self, step: int) -> None:
        """Count from here: a save has just been made, or resumed from."""
        self._step, self._time, self._ask_at = step, time.monotonic(), step + 1

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Return whether to save now; each rank asks at the same steps."""
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


def settle(checkpoint: State, *, is_mid_epoch: bool) -> None:
    """Complete the counts of a state.

    A state between two epochs resumes as a training that has ended one and not begun the next, so
    that Lightning begins that epoch like any other. One in mid-epoch resumes behind the batch at
    whose end it was taken.

    Args:
        checkpoint: as Lightning has dumped it; changed in place.
        is_mid_epoch: where it was taken.
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
    """Return the step under which the last metrics before a state are recorded.

    Lightning counts batches that completed an accumulation there, not calls of optimisers, of which
    a model may have several.
    """
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    return int(counts["_batches_that_stepped"]) + is_mid_epoch
