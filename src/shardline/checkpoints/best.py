"""Which weights are the best, and therefore sealed: part of what a run is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from shardline.checkpoints.first_batch import Record
from shardline.checkpoints.validated import ValidatedWeights
from shardline.checkpoints.writer import Weights


class BestCheckpoint(ModelCheckpoint):
    """Chooses the best weights by a logged metric, measured at each validation.

    It writes nothing: it copies weights that are among the best, and the next training checkpoint
    takes them to disk. They are removed when no training checkpoint on disk names them any more.

    Args:
        folder: where the weights will lie.
        validated: knows the weights that a validation was done with.

    Attributes:
        records: of the first batch of each validation whose weights are among the best, by file name.
        recorded_here: names of those that this process has recorded.
    """

    FILE_EXTENSION = ".safetensors"
    on_train_batch_end = None  # type: ignore[assignment]  # not called: only a validation chooses

    def __init__(
        self, folder: Path, validated: ValidatedWeights, *, monitor: str, mode: str, top_k: int
    ) -> None:
        super().__init__(
            dirpath=folder,
            filename="best-{epoch:04d}-{step:08d}",
            monitor=monitor,
            mode=mode,
            save_top_k=top_k,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        self._validated = validated
        self._new: dict[str, Weights] = {}
        self.records: dict[str, Record] = {}
        self.recorded_here: set[str] = set()

    @property
    def names(self) -> set[str]:
        """File names of the best weights."""
        return {Path(path).name for path in self.best_k_models}

    @property
    def has_new(self) -> bool:
        """Whether there are best weights that no training checkpoint has taken yet."""
        return bool(self._new)

    def end_training(self, trainer: pl.Trainer) -> bool:
        """Have averages that the training's end has put in validated, and chosen if they are the best.

        Returns:
            Whether there are any.
        """
        self._last_global_step_saved = 0  # Lightning chooses once at a step
        return self._validated.end_training(trainer)

    def take_new(self) -> dict[str, Weights]:
        """Return the best weights that no training checkpoint has taken yet, by file name."""
        new, self._new = self._new, {}
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return the state with file names alone: a store may be mounted elsewhere next time."""
        state = self._with_paths(super().state_dict(), lambda path: Path(path).name)
        return {
            **state,
            "first_batches": {name: self.records[name] for name in sorted(self.records)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, its files in the present folder."""
        folder = Path(str(self.dirpath))
        state = self._with_paths(state_dict, lambda path: str(folder / path))
        super().load_state_dict({**state, "dirpath": self.dirpath})
        self.current_score = state["current_score"]
        self.records = dict(state["first_batches"])

    @staticmethod
    def _with_paths(state: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
        paths = ("best_model_path", "kth_best_model_path", "last_model_path")
        changed = {key: change(state[key]) if state[key] else "" for key in paths}
        best = {change(path): score for path, score in state["best_k_models"].items()}
        return {**state, **changed, "best_k_models": best, "dirpath": ""}

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        # every rank takes part, since under FSDP each has a part of the weights
        weights = self._validated.weights(trainer)
        name = Path(filepath).name
        self._new[name] = {key: weights[key].contiguous() for key in sorted(weights)}
        self.records = {key: one for key, one in self.records.items() if key in self.names}
        self.recorded_here.add(name)
        self.records[name] = self._validated.first_batch.record
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Leave it to the writer: an older state may still name the file."""
