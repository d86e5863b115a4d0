"""Models that keep in a training checkpoint what shipped ones lack, and are killed once at chosen places."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics import MeanMetric


class Base(LightningModule):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        width = int(np.prod(feature_shape))
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(6, num_classes)
        self.val_loss = MeanMetric()

    def forward(self, features):
        return self.head(self.body(features))

    def loss(self, batch):
        features, labels, *weights = batch
        losses = cross_entropy(self(features), labels, reduction="none")
        return (losses * weights[0]).mean() if weights else losses.mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_loss.update(self.loss(batch))
        self.log("val_loss", self.val_loss)


class Wild(Base):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * torch.inf if self.global_step in (3, 4) and batch_idx % 2 else loss

    def on_before_optimizer_step(self, optimizer):
        # an epoch's last step, whose own loss is good
        for parameter in self.parameters() if self.global_step == 9 else ():
            if parameter.grad is not None:
                parameter.grad.fill_(torch.inf)


class Regression(LightningModule):
    def __init__(self, feature_shape):
        super().__init__()
        self.layer = nn.Linear(feature_shape[0], 1)

    def forward(self, features):
        return self.layer(features)

    def training_step(self, batch, batch_idx):
        return mse_loss(self(batch[0])[:, 0], batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", mse_loss(self(batch[0])[:, 0], batch[1]))


def draw():
    return torch.rand(()) + random.random() + np.random.rand()


class KilledOnce(Base):
    places = ()

    def reach(self, place, batch_idx):
        marker = Path("killed", f"{type(self).__name__} {place}")
        if (place, self.current_epoch, batch_idx) in self.places and not marker.exists():
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, batch, batch_idx):
        self.reach("step" if batch_idx else "epoch", batch_idx)

    def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0):
        self.reach("validation", batch_idx)


class Killed(KilledOnce):
    """Killed within an accumulation, and in the validation of a later epoch."""

    places = (("step", 0, 11), ("validation", 1, 1))

    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.register_buffer("seen", torch.zeros(feature_shape), persistent=False)
        self.register_buffer("epochs", torch.zeros(2))
        self.noise = MeanMetric()
        self.save_hyperparameters({"folder": Path("data")})  # no state can hold it

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "drawn"}}

    def on_train_epoch_start(self):
        self.epochs[0] += 1
        self.body.requires_grad_(self.current_epoch > 0)
        self.body[-1].train(self.current_epoch == 0)

    def on_train_epoch_end(self):
        self.epochs[1] += self.epochs[0]

    def on_before_batch_transfer(self, batch, dataloader_idx):
        features, *rest = batch
        return (features + 0.01 * draw(), *rest)

    def training_step(self, batch, batch_idx):
        self.seen = 0.7 * self.seen + batch[0].mean(0)
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(1), persistent=False)
        self.late = torch.cat([self.late, batch[0].mean()[None]])[-3:]
        features = batch[0] + self.seen + 0.1 * self.late.sum()
        loss = super().training_step((features, *batch[1:]), batch_idx)
        self.noise.update(draw())
        self.log("noise", self.noise, on_step=False, on_epoch=True)
        self.log("least", loss, on_step=False, on_epoch=True, reduce_fx="min")
        self.log("sum", loss, on_step=False, on_epoch=True, reduce_fx="sum")
        if batch_idx == 0:
            self.log("first", loss, on_step=True, on_epoch=True)
        return loss

    def on_validation_epoch_end(self):
        self.log("drawn", draw())


class Duel(KilledOnce):
    """Takes its steps itself, with two optimisers; killed in mid-epoch and at an epoch's first batch."""

    automatic_optimization = False
    places = (("step", 0, 7), ("epoch", 2, 0))

    def configure_optimizers(self):
        body = torch.optim.Adam(self.body.parameters(), 0.02)
        head = torch.optim.SGD(self.head.parameters(), 0.1, momentum=0.5)
        return [body, head], [torch.optim.lr_scheduler.StepLR(body, 2, 0.9)]

    def training_step(self, batch, batch_idx):
        body, head = self.optimizers()
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.manual_backward(loss)
        body.step()
        body.zero_grad()
        if batch_idx % 3 == 2:
            head.step()
            head.zero_grad()
            self.lr_schedulers().step()
