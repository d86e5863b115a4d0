"""Measure the time of a training under Lightning, with two clock readings per step."""

from array import array
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import PassThroughProfiler

from shardline.training.goodput import Timeline

_FETCH = "[_TrainingEpochLoop].train_dataloader_next"
_SAVE = "save_checkpoint"
_READINGS_KEPT = 100_000
# A GPU runs up to two steps behind the program (see `step_all_reduce`), so single steps cannot be
# distinguished. It is equally far behind at both ends of a reading.
_STEPS_A_READING_GPU = 10

Parts = dict[int, dict[str, float]]


class Stopwatch(Callback):
    """Splits the time of a training into parts, and measures its steps.

    Computing lasts from the arrival of a batch to the request for the next. Validations and saves
    count separately. The kept time of earlier attempts is in the training checkpoint.

    Args:
        timeline: Timeline of this attempt.
        number: Number of this attempt.
        on_start: Function that is called before the first step, with the step from which the
            training resumes and the kept parts of all attempts.
    """

    def __init__(
        self, timeline: Timeline, number: int, on_start: Callable[[int, Parts], None]
    ) -> None:
        self._timeline, self._number, self._on_start = timeline, number, on_start
        self._earlier: Parts = {}
        self._at_state: dict[str, float] | None = None  # this attempt's parts in the resumed state
        self._at_start: dict[str, float] = {}
        self._readings, self._num_readings = array("d", bytes(8 * _READINGS_KEPT)), 0
        self._read_at = (0, 0.0)
        self.steps_a_reading = 1

    @property
    def readings(self) -> list[float]:
        """Seconds of a step; each reading is the mean of `steps_a_reading` consecutive steps."""
        kept, end = min(self._num_readings, _READINGS_KEPT), self._num_readings % _READINGS_KEPT
        return [*self._readings[end:kept], *self._readings[:end]]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part of this attempt so far; lost work counts under `lost`."""
        return self._timeline.seconds()

    def kept(self) -> Parts:
        """Return the seconds of each part by attempt, for work that is in the current state."""
        return {**self._earlier, self._number: self._timeline.seconds()}

    def state_dict(self) -> dict[str, Parts]:
        """Return the kept parts, for the training checkpoint."""
        return {"kept": self.kept()}

    def load_state_dict(self, state_dict: Mapping[str, Parts]) -> None:
        """Restore the kept parts of a state."""
        self._at_state = state_dict["kept"].get(self._number)
        self._earlier = {
            number: parts for number, parts in state_dict["kept"].items() if number < self._number
        }

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install a profiler, which Lightning calls when it fetches a batch and when it saves."""
        watch, given = _Watch(self._timeline), trainer.profiler  # type: ignore[attr-defined]
        if isinstance(given, PassThroughProfiler):
            trainer.profiler = watch  # type: ignore[attr-defined]  # not declared there
        else:  # of runtime.profiler
            given.start, given.stop = _both(watch.start, given.start), _both(given.stop, watch.stop)
        self.steps_a_reading = (
            _STEPS_A_READING_GPU if trainer.strategy.root_device.type == "cuda" else 1
        )

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Reset the resumed state, since the training may restart from the beginning."""
        self._earlier, self._at_state = {}, None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to count steps; after a rollback, count the time since the state as lost."""
        self._timeline.switch("other")
        if self._at_start:
            self._timeline.go_back(self._at_state or self._at_start)
        self._at_start = self._at_start or self._timeline.seconds()
        self._read_at = trainer.global_step, self._timeline.stepping_s()
        self._on_start(trainer.global_step, self.kept())

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Take a reading if enough optimiser steps were completed."""
        before, since = self._read_at
        steps = trainer.global_step - before
        if steps < self.steps_a_reading:
            return
        self._read_at = trainer.global_step, self._timeline.stepping_s()
        self._readings[self._num_readings % _READINGS_KEPT] = (self._read_at[1] - since) / steps
        self._num_readings += 1

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the part `validation`."""
        self._timeline.switch("validation")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the part `validation`."""
        self._timeline.switch("other")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the steps of an epoch."""
        self._timeline.switch("other")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the steps; sealing counts as `other`."""
        self._timeline.switch("other")


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def call(action_name: str) -> None:
        first(action_name)
        second(action_name)

    return call


_NOTHING = nullcontext()


class _Watch(PassThroughProfiler):
    """A profiler that switches the timeline at fetches and saves; other actions cost nothing."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline, self._before = timeline, "other"

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        return super().profile(action_name) if action_name == _SAVE else _NOTHING

    def start(self, action_name: str) -> None:
        if action_name == _FETCH:
            self._timeline.switch("data_wait")
        elif action_name == _SAVE:
            self._before = self._timeline.switch("checkpoint")

    def stop(self, action_name: str) -> None:
        if action_name == _FETCH:
            self._timeline.switch("compute")
        elif action_name == _SAVE:
            self._timeline.switch(self._before)
