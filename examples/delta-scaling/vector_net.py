"""A perceptron with two hidden layers for vectors."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import Accuracy, MeanMetric


class VectorNet(LightningModule):
    """A classifier of vectors that logs val_accuracy, which early stopping monitors."""

    def __init__(self, feature_shape, num_classes, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(feature_shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, num_classes),
        )  # fmt: skip
        self.val_loss = MeanMetric()
        self.val_accuracy = Accuracy("multiclass", num_classes=num_classes)

    def forward(self, vectors_BF: torch.Tensor) -> torch.Tensor:
        return self.net(vectors_BF)

    def training_step(self, batch, batch_idx):
        vectors, labels = batch
        loss = cross_entropy(self(vectors), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        vectors, labels = batch
        logits = self(vectors)
        self.val_loss.update(cross_entropy(logits, labels), weight=len(labels))
        self.val_accuracy.update(logits, labels)
        self.log("val_loss", self.val_loss)
        self.log("val_accuracy", self.val_accuracy)
