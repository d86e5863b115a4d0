"""Print the progress of a training as plain lines."""

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only


class PlainProgress(pl.Callback):
    """Prints a progress line at most every `every_s` seconds, for logs and progress bars."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._last = 0.0

    @rank_zero_only
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the number of ranks, nodes and batches, and the first step."""
        start = f"resuming from step {trainer.global_step}" if trainer.global_step else "starting"
        print(
            f"{start}: {trainer.world_size} ranks on {trainer.num_nodes} nodes, "
            f"{type(trainer.accelerator).__name__}, {trainer.num_training_batches} batches an epoch",
            flush=True,
        )

    @rank_zero_only
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print a progress line if the last one is old enough."""
        if time.monotonic() - self._last >= self._every_s:
            self._print(trainer)

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print the last progress line."""
        self._print(trainer)

    def _print(self, trainer: pl.Trainer) -> None:
        self._last = time.monotonic()
        metrics = "".join(
            f" {name}={value:.4g}"
            for name, value in sorted(trainer.logged_metrics.items())
            if name != "epoch"
        )
        total = trainer.datamodule.total_steps  # type: ignore[attr-defined]
        epoch = min(trainer.current_epoch + 1, trainer.max_epochs or 0)
        print(
            f"progress step={trainer.global_step}/{total} epoch={epoch}/{trainer.max_epochs}{metrics}",
            flush=True,
        )
