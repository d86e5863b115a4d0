import math

import torch
from pytorch_lightning import LightningModule
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric


class Net(LightningModule):
    def __init__(self, feature_shape, num_classes, width=32):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(math.prod(feature_shape), width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, num_classes),
        )
        self.val_loss = MeanMetric()

    def forward(self, features):  # [B, *feature_shape] -> logits [B, C]
        return self.net(features)

    def training_step(self, batch, batch_idx):
        features, labels = batch
        loss = cross_entropy(self(features), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        features, labels = batch
        self.val_loss.update(cross_entropy(self(features), labels), weight=len(labels))
        self.log("val_loss", self.val_loss)
