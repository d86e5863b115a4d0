"""When the next training checkpoint is due; all ranks say the same."""

import time

import pytorch_lightning as pl
import torch
import torch.distributed as dist

_LONGEST_WAIT = 50  # steps


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
