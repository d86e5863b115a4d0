"""The models whose steps are timed, and their clock: the same in each program."""

import json
import os
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor, Timer
from torch import nn
from torch.nn import functional

FEATURES, CLASSES = 64, 10
GLOBAL_BATCH = 32
EPOCH_STEPS = 180
WIDTH = 1024  # of the hidden layers of `Wide`: some 5 ms a step on one core
WARM_UP = 100  # steps that no figure counts
OUT, PROFILED = "STEPS_OUT", "STEPS_PROFILED"  # environment variables
CALLBACKS = "STEPS_CALLBACKS"  # set: the model brings its three callbacks itself
ACCELERATOR = os.environ.get("STEPS_ACCELERATOR", "cpu")  # or gpu
_SAMPLES_PER_S = 400
# The first that a stack's innermost frames meet names what a sample belongs to.
_PARTS = (
    ("data", ("shardline/data/", "utils/data/")),
    ("backward", ("autograd/", "_tensor.py:backward")),
    ("optimizer", ("torch/optim/",)),
    ("self.log", ("core/module.py:log", "logger_connector/", "torchmetrics/")),
    ("loss, stop", ("training/divergence", "training/step_all_reduce", "training/stop_agreement")),
    ("seeds", ("training/steps",)),
    ("checkpoints", ("shardline/checkpoints/", "model_checkpoint.py")),
    ("records", ("training/metrics", "loggers/", "csv_logs")),
    (
        "clocks",
        (
            "training/stopwatch",
            "training/goodput",
            "training/heartbeat",
            "supervision/heartbeat_memory",
        ),
    ),
    ("forward", ("steps/timed.py:training_step", "torch/nn/")),
    ("Lightning", ("pytorch_lightning/", "lightning_fabric/")),
)


class Clock:
    """Reads the time as each step ends, and writes the times when the training is over.

    Args:
        rank: this process's; only rank 0 writes.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ends = array("d")
        self._epochs = array("l")
        self._cpu_s = 0.0
        self._parts: Counter[str] = Counter()

    def read(self, epoch: int) -> None:
        """A step of an epoch has ended."""
        if len(self._ends) == WARM_UP:
            self._cpu_s = time.process_time()
            if os.environ.get(PROFILED):
                _Sampler(self._parts).start()
        self._epochs.append(epoch)
        self._ends.append(time.perf_counter())

    def write(self) -> None:
        """Write the seconds of each step but an epoch's first, the cores in use, and the samples of each part."""
        if self._rank:
            return
        ends, epochs = self._ends, self._epochs
        steps = range(WARM_UP + 1, len(ends))
        seconds = [ends[i] - ends[i - 1] for i in steps if epochs[i] == epochs[i - 1]]
        cores = (time.process_time() - self._cpu_s) / (time.perf_counter() - ends[WARM_UP])
        measured = {"seconds": seconds, "cores": cores, "parts": self._parts}
        Path(os.environ[OUT]).write_text(json.dumps(measured))


class _Sampler(threading.Thread):
    """Looks 400 times a second at what the main thread does."""

    def __init__(self, parts: Counter[str]) -> None:
        super().__init__(daemon=True)
        self._parts, self._observed_thread = parts, threading.main_thread().ident or 0

    def run(self) -> None:
        while True:
            time.sleep(1 / _SAMPLES_PER_S)
            if frame := sys._current_frames().get(self._observed_thread):
                self._parts[part_of(frame)] += 1


def part_of(frame: FrameType | None) -> str:
    """Return the part of a step that a stack belongs to."""
    while frame:
        place = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        for name, patterns in _PARTS:
            if any(pattern in place for pattern in patterns):
                return name
        frame = frame.f_back
    return "rest"


class Counting(pl.Callback):
    """Counts steps, and keeps the count in training checkpoints."""

    def __init__(self) -> None:
        self._steps = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = state_dict["steps"]


class Linear(pl.LightningModule):
    """Multinomial logistic regression, with a clock."""

    def __init__(self, feature_shape: tuple[int, ...] = (FEATURES,), num_classes: int = CLASSES):
        super().__init__()
        self.layers: nn.Module = nn.Linear(feature_shape[0], num_classes)
        self._clock: Clock | None = None

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)

    def configure_callbacks(self) -> list[pl.Callback]:
        if not os.environ.get(CALLBACKS):
            return []
        return [LearningRateMonitor(), Timer(), Counting()]

    def on_train_start(self) -> None:
        self._clock = Clock(self.global_rank)

    def on_train_batch_end(self, *_: Any) -> None:
        assert self._clock
        self._clock.read(self.current_epoch)

    def on_train_end(self) -> None:
        assert self._clock
        self._clock.write()


class Wide(Linear):
    """A multilayer perceptron that keeps a core busy."""

    def __init__(self, feature_shape: tuple[int, ...] = (FEATURES,), num_classes: int = CLASSES):
        super().__init__(feature_shape, num_classes)
        self.layers = nn.Sequential(
            nn.Linear(feature_shape[0], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, num_classes),
        )  # fmt: skip


MODELS: dict[str, type[Linear]] = {"linear": Linear, "wide": Wide}


def rows(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features [num, FEATURES] and labels [num] for the programs that read no shards."""
    return torch.randn(num, FEATURES), torch.randint(0, CLASSES, (num,))
