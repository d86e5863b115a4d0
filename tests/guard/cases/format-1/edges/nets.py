"""A model with one weight under two names, killed once behind an intervention."""

import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric


class Tied(LightningModule):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        width = feature_shape[0]
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(width, num_classes)
        self.register_buffer("first", torch.zeros(width))
        self.register_buffer("last", self.first)
        self.val_loss = MeanMetric()

    def forward(self, features):
        return self.head(self.outer(torch.tanh(self.inner(features.float()))))

    def training_step(self, batch, batch_idx):
        self.first += batch[0].float().mean(0)
        loss = cross_entropy(self(batch[0] + 0.1 * torch.tanh(self.last)), batch[1])
        return loss * torch.inf if self.global_step == 3 else loss

    def validation_step(self, batch, batch_idx):
        self.val_loss.update(cross_entropy(self(batch[0]), batch[1], reduction="none"))
        self.log("val_loss", self.val_loss)

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 7 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
