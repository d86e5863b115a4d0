"""Training checkpoints, kept in the store and never unpickled blindly."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from shardline.errors import ConfigError, DataError
from shardline.files import atomic_writer

LAST = "last.ckpt"
_HYPER_PARAMETERS = "hyper_parameters"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a training checkpoint, mapped into memory, without unpickling objects.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        size = f"{path.stat().st_size:,} bytes" if path.exists() else "missing"
        raise DataError(
            f"training checkpoint {path} cannot be read ({size}); "
            f"delete {path.parent} to train from the start"
        ) from error
    return state


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a training checkpoint beside its place and renames it; proves that it can be read.

    Lightning writes to the temporary folder and moves the file, which over two
    file systems truncates the only copy that there is. Hyperparameters are left
    out: the model is made from `run.json`, and they may hold what cannot be
    read back without unpickling.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_proven = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, all or nothing.

        Raises:
            ConfigError: the state holds what `weights_only=True` refuses to read.
        """
        kept = {key: value for key, value in checkpoint.items() if key != _HYPER_PARAMETERS}
        with atomic_writer(Path(path)) as file:
            torch.save(kept, file)
        if not self._is_proven:
            self._prove(Path(path))

    def _prove(self, path: Path) -> None:
        try:
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            path.unlink()
            reason = next(
                (line for line in str(error).splitlines() if "global" in line), str(error)
            )
            raise ConfigError(
                "the model's training state could not be resumed, since it holds more than tensors and plain "
                f"values ({reason.strip()}); keep such objects out of buffers, callbacks and on_save_checkpoint"
            ) from None
        self._is_proven = True


class BestCheckpoint(ModelCheckpoint):
    """Keeps the best training checkpoints by a logged metric, measured at each validation.

    Lightning would remove a checkpoint as soon as a better one is there. Here
    it stays until the state to resume from names the better one: a training
    that is killed in between goes back to where the older one was the best.
    """

    def __init__(self, folder: Path, *, monitor: str, mode: str, top_k: int) -> None:
        super().__init__(
            dirpath=folder,
            filename="best-{epoch:04d}-{step:08d}",
            monitor=monitor,
            mode=mode,
            save_top_k=top_k,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state with file names alone: a store may be mounted elsewhere next time."""
        return self._with_paths(super().state_dict(), lambda path: Path(path).name)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, its files in the present folder."""
        folder = Path(str(self.dirpath))
        state = self._with_paths(state_dict, lambda path: str(folder / path))
        super().load_state_dict({**state, "dirpath": self.dirpath})

    @staticmethod
    def _with_paths(state: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
        paths = ("best_model_path", "kth_best_model_path", "last_model_path")
        changed = {key: change(state[key]) if state[key] else "" for key in paths}
        best = {change(path): score for path, score in state["best_k_models"].items()}
        return {**state, **changed, "best_k_models": best, "dirpath": ""}

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Leave it to `prune`."""

    def prune(self) -> None:
        """Remove the checkpoints that are no longer among the best."""
        kept = {Path(path).name for path in (*self.best_k_models, self.best_model_path)}
        for path in Path(str(self.dirpath)).glob("best-*.ckpt"):
            if path.name not in kept:
                path.unlink()


class LastCheckpoint(Callback):
    """Saves the state to resume from: every few optimiser steps, with each new best, and at the end.

    A save that falls on the last batch of an epoch waits until the epoch's
    validation is over, so that a resumed run never skips a validation.

    Args:
        folder: where `last.ckpt` is written.
        every_steps: optimiser steps between saves.
        best: keeps the best checkpoints, which the state names.
    """

    def __init__(self, folder: Path, every_steps: int, best: BestCheckpoint) -> None:
        self.path = folder / LAST
        self._every_steps = every_steps
        self._best = best
        self._saved = (0, "")
        self._stopped = False
        self.seconds = 0.0

    def step_saved(self) -> int:
        """Return the optimiser step of the state on disk, 0 where there is none."""
        return int(read_checkpoint(self.path)["global_step"]) if self.path.exists() else 0

    def state_dict(self) -> dict[str, Any]:
        """Return whether the training was stopped early, which Lightning does not keep."""
        return {"stopped": self._stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over whether the training was stopped early."""
        self._stopped = state_dict["stopped"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from the step that was resumed; one that was stopped stays stopped."""
        self._saved = trainer.global_step, self._best.best_model_path
        trainer.should_stop = trainer.should_stop or self._stopped

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save in mid-epoch, at a step boundary."""
        at_boundary = not trainer.fit_loop.epoch_loop._should_accumulate()
        if at_boundary and not trainer.is_last_batch and self._is_due(trainer):
            # Lightning writes the step's metrics after this; a kill in between would lose them
            trainer._logger_connector.update_train_step_metrics()
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save at the end of an epoch, after its validation."""
        self._stopped = trainer.should_stop
        is_end = self._stopped or trainer.current_epoch + 1 == trainer.max_epochs
        if is_end or self._best.best_model_path != self._saved[1] or self._is_due(trainer):
            self._save(trainer)

    def _is_due(self, trainer: pl.Trainer) -> bool:
        return trainer.global_step // self._every_steps > self._saved[0] // self._every_steps

    def _save(self, trainer: pl.Trainer) -> None:
        started = time.monotonic()
        trainer.save_checkpoint(self.path)
        if trainer.is_global_zero:
            self._best.prune()
        self.seconds += time.monotonic() - started
        self._saved = trainer.global_step, self._best.best_model_path


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the model's weights from a training checkpoint."""
    weights: dict[str, torch.Tensor] = read_checkpoint(path)["state_dict"]
    return weights
