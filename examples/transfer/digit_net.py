"""A small convolutional network of a body, which several tasks can share, and a head."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import Accuracy, MeanMetric


class DigitNet(LightningModule):
    """Two convolutions and a linear layer as the body, and a linear head."""

    def __init__(self, num_classes, channels=16, features=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * channels, features), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(features, num_classes)
        self.val_loss = MeanMetric()
        self.val_accuracy = Accuracy("multiclass", num_classes=num_classes)

    def forward(self, images_BHW: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images_BHW[:, None]))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.val_loss.update(cross_entropy(logits, labels), weight=len(labels))
        self.val_accuracy.update(logits, labels)
        self.log("val_loss", self.val_loss)
        self.log("val_accuracy", self.val_accuracy)
