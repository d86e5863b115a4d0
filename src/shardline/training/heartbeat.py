"""Records heartbeats of a rank's training, and the use of its GPU, for its watchdog."""

import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from shardline_io import heartbeat_memory

_GPU_PERIOD_S = 2.0  # a reading takes some 0.1 ms


class Heartbeat(Callback):
    """Ticks as each batch begins and ends, and around validations and saves; reads nothing of the model."""

    def __init__(self) -> None:
        self._memory = heartbeat_memory.mine()
        self._next_s, self._has_gpu, self._has_nvml = 0.0, False, True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The first step begins."""
        self._has_gpu = trainer.strategy.root_device.type == "cuda"
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
        self._record_gpu()

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
        self._record_gpu()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A training checkpoint is about to be written."""
        self._memory.tick(trainer.global_step, "save")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What comes now is the sealing."""
        self._memory.tick(trainer.global_step, "seal")

    def _record_gpu(self) -> None:
        """Record what PyTorch holds of the rank's GPU, and its utilisation where NVML's package is installed."""
        if not self._has_gpu or (now := time.monotonic()) < self._next_s:
            return
        self._next_s, percent = now + _GPU_PERIOD_S, None
        if self._has_nvml:
            try:
                percent = torch.cuda.utilization()
            except Exception:  # no nvidia-ml-py, or a device that does not tell: no reason to fail
                self._has_nvml = False
        self._memory.record_gpu(torch.cuda.memory_reserved(), percent)
