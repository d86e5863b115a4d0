"""How often training checkpoints are saved, how many stay, and what may stand in the way of a save."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings under `runtime.checkpoint`. None of them changes a result.

    Attributes:
        every_steps: optimiser steps between two training checkpoints; 0 for never.
        every_min: minutes between two training checkpoints; 0 for never.
        keep: training checkpoints that stay.
        keep_best: best weights that stay; the best of them is sealed.
        asynchronous: write beside the training; else each save waits for the disk.
    """

    every_steps: int = 0
    every_min: float = 0.0
    keep: int = 2
    keep_best: int = 1
    asynchronous: bool = True


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What a training asks of its training checkpoints.

    Attributes:
        may_save: asked by all ranks before a state is taken; raises where the training has to go
            back to an earlier state.
        on_resume: called with the step under which the last metrics of the resumed state are
            recorded; 0 where the training starts from nothing.
    """

    may_save: Callable[[Any], bool] = lambda trainer: True
    on_resume: Callable[[int], object] = lambda step: None
