"""A model whose rank 1 is killed, which leaves one CPU; and which is killed again, which gives the others back."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric, Metric


def leave(cpus):
    """Have the job, what starts it again, and what forks its ranks find these CPUs: all that works in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(
            FileNotFoundError, ProcessLookupError, PermissionError
        ):  # it has just ended, or is another's
            if not (process / "cwd").samefile(Path.cwd()):
                continue
            for thread in (process / "task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cpus)


class Level(Metric):
    """A mean of means, which counts its updates."""

    def __init__(self):
        super().__init__()
        self.add_state("level", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, value):
        self.level += (value - self.level) / self._update_count

    def compute(self):
        return self.level


class Shrinking(LightningModule):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(feature_shape[0], 8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, num_classes)
        self.register_buffer("seen", torch.zeros(feature_shape))
        self.val_loss, self.level = MeanMetric(), Level()

    def forward(self, features):
        return self.head(self.body(features))

    def training_step(self, batch, batch_idx):
        features, labels, weights = batch
        losses = cross_entropy(self(features + 0.1 * self.seen), labels, reduction="none")
        loss = (losses * weights).mean()
        self.seen += 0.1 * features.mean(0)
        self.level.update(loss.detach())
        self.log("level", self.level, on_step=False, on_epoch=True)
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("most", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_loss.update(cross_entropy(self(batch[0]), batch[1], reduction="none"))
        self.log("val_loss", self.val_loss)

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 5 and self.global_rank == 1 and not Path("shrunk").exists():
            cpus = sorted(os.sched_getaffinity(0))
            Path("shrunk").write_text(" ".join(map(str, cpus)))
            self.kill(cpus[:1])
        if self.global_step == 14 and self.trainer.world_size == 1:
            self.kill(map(int, Path("shrunk").read_text().split()))

    def kill(self, cpus):
        leave(set(cpus))
        os.kill(os.getpid(), signal.SIGKILL)
