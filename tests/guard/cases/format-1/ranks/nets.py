"""A model whose rank 1 has a bad step, and is killed once in mid-epoch."""

import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric


class Killed(LightningModule):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        layers = nn.Linear(feature_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(8, num_classes)
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("own", torch.zeros(feature_shape))
        self.val_loss = MeanMetric()

    def forward(self, features):
        return self.head(self.body(features))

    def training_step(self, batch, batch_idx):
        self.own = 0.7 * self.own + batch[0].mean(0)  # on each rank another one
        loss = cross_entropy(self(batch[0] + 0.1 * self.own), batch[1])  # of rows that fill up, too
        if self.reach("bad", 3):  # a save is due behind it
            loss = loss * torch.inf
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_loss.update(cross_entropy(self(batch[0]), batch[1], reduction="none"))
        self.log("val_loss", self.val_loss)

    def on_train_batch_start(self, batch, batch_idx):
        self.steps += 1
        if self.reach("killed", 7):
            os.kill(os.getpid(), signal.SIGKILL)

    def reach(self, what, step):
        marker = Path(f"{what}-{type(self.trainer.strategy).__name__}")
        is_here = self.global_rank == 1 and self.global_step == step and not marker.exists()
        if is_here:
            marker.touch()
        return is_here
