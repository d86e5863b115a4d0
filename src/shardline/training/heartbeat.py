"""Records heartbeats of a rank's training for its watchdog."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from shardline.supervision import heartbeat_memory


class Heartbeat(Callback):
    """Ticks as each batch begins and ends, and around validations and saves; reads nothing of the model."""

    def __init__(self) -> None:
        self._memory = heartbeat_memory.mine()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The first step begins."""
        self._memory.tick(trainer.global_step, "train")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A batch has arrived."""
        self._memory.tick(trainer.global_step, "train", 2 * batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        """A batch is done."""
        self._memory.tick(trainer.global_step, "train", 2 * batch_idx + 1)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """An epoch is done."""
        self._memory.tick(trainer.global_step, "train")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A validation begins."""
        self._memory.tick(trainer.global_step, "validation")

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """A batch of a validation is done; its number is left out, since ranks may have unequally many."""
        self._memory.tick(trainer.global_step, "validation")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A training checkpoint is about to be written."""
        self._memory.tick(trainer.global_step, "save")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What comes now is the sealing."""
        self._memory.tick(trainer.global_step, "seal")
