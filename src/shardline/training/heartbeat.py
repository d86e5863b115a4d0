"""Record heartbeats and GPU usage of a rank for its watchdog."""

import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from shardline_io import heartbeat_memory

_GPU_PERIOD_S = 2.0  # a reading takes some 0.1 ms


class Heartbeat(Callback):
    """Records a heartbeat at the start and end of each batch, and at validations and saves."""

    def __init__(self) -> None:
        self._memory = heartbeat_memory.mine()
        self._next_s, self._has_gpu, self._has_nvml = 0.0, False, True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the start of the training."""
        self._has_gpu = trainer.strategy.root_device.type == "cuda"
        self._memory.tick(trainer.global_step, "train")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the arrival of a batch."""
        self._memory.tick(trainer.global_step, "train", 2 * batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        """Record the end of a batch."""
        self._memory.tick(trainer.global_step, "train", 2 * batch_idx + 1)
        self._record_gpu()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the end of an epoch."""
        self._memory.tick(trainer.global_step, "train")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the start of a validation."""
        self._memory.tick(trainer.global_step, "validation")

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Record a validation batch, without its number, since ranks may have different numbers of them."""
        self._memory.tick(trainer.global_step, "validation")
        self._record_gpu()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record the start of a save."""
        self._memory.tick(trainer.global_step, "save")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the start of sealing."""
        self._memory.tick(trainer.global_step, "seal")

    def _record_gpu(self) -> None:
        """Record the GPU memory that PyTorch reserves, and the utilisation if NVML's package is installed."""
        if not self._has_gpu or (now := time.monotonic()) < self._next_s:
            return
        self._next_s, percent = now + _GPU_PERIOD_S, None
        if self._has_nvml:
            try:
                percent = torch.cuda.utilization()
            except Exception:  # no nvidia-ml-py, or a device without this value: must not fail
                self._has_nvml = False
        self._memory.record_gpu(torch.cuda.memory_reserved(), percent)
