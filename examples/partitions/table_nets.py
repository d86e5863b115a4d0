"""A minimal model that tests the pipeline, and the real model."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import Accuracy, MeanMetric


class Boring(LightningModule):
    """One linear layer, like Lightning's BoringModel."""

    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.net = self.make_net(feature_shape[0], num_classes)
        self.val_loss = MeanMetric()
        self.val_accuracy = Accuracy("multiclass", num_classes=num_classes)

    def make_net(self, num_features, num_classes):
        return nn.Linear(num_features, num_classes)

    def forward(self, features_BF: torch.Tensor) -> torch.Tensor:
        return self.net(features_BF)

    def training_step(self, batch, batch_idx):
        features, labels = batch
        loss = cross_entropy(self(features), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        features, labels = batch
        logits = self(features)
        self.val_loss.update(cross_entropy(logits, labels), weight=len(labels))
        self.val_accuracy.update(logits, labels)
        self.log("val_loss", self.val_loss)
        self.log("val_accuracy", self.val_accuracy)


class Network(Boring):
    """The same model with two hidden layers."""

    def make_net(self, num_features, num_classes, width=64):
        return nn.Sequential(
            nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, num_classes),
        )  # fmt: skip
