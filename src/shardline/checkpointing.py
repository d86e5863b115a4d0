"""Training checkpoints, kept in the store and never unpickled blindly."""

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

LAST = "last.ckpt"


class LastCheckpoint(Callback):
    """Saves the state to resume from, every few optimiser steps.

    A save that falls on the last batch of an epoch waits until the epoch's
    validation is over, so that a resumed run never skips a validation.

    Args:
        folder: where `last.ckpt` is written.
        every_steps: optimiser steps between saves.
    """

    def __init__(self, folder: Path, every_steps: int) -> None:
        self.path = folder / LAST
        self._every_steps = every_steps
        self._saved_step = 0
        self.seconds = 0.0

    def step_saved(self) -> int:
        """Return the optimiser step of the state on disk, 0 where there is none."""
        if not self.path.exists():
            return 0
        return int(torch.load(self.path, map_location="cpu", weights_only=True)["global_step"])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from the step that was resumed."""
        self._saved_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save in mid-epoch, at a step boundary."""
        at_boundary = not trainer.fit_loop.epoch_loop._should_accumulate()
        if at_boundary and not trainer.is_last_batch:
            self._save_if_due(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save at the end of an epoch, after its validation."""
        self._save_if_due(trainer)

    def _save_if_due(self, trainer: pl.Trainer) -> None:
        if trainer.global_step // self._every_steps > self._saved_step // self._every_steps:
            started = time.monotonic()
            trainer.save_checkpoint(self.path)
            self.seconds += time.monotonic() - started
            self._saved_step = trainer.global_step


def best_checkpoint(folder: Path, *, monitor: str, mode: str, top_k: int) -> ModelCheckpoint:
    """Return the callback that keeps the best training checkpoints by a logged metric."""
    return ModelCheckpoint(
        dirpath=folder,
        filename="best-{epoch:04d}-{step:08d}",
        monitor=monitor,
        mode=mode,
        save_top_k=top_k,
        enable_version_counter=False,
    )


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the model's weights from a training checkpoint, without unpickling objects."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    weights: dict[str, torch.Tensor] = checkpoint["state_dict"]
    return weights
