"""Contrastive learning without labels, after Chen et al. 2020 (SimCLR)."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torchmetrics import MeanMetric


class Contrastive(LightningModule):
    """A small convolutional encoder, and a projection in which two views of an image are compared."""

    def __init__(self, width=32, temperature=0.2):
        super().__init__()
        self.temperature = temperature
        layers = []
        for before, after in ((1, width), (width, width), (width, 2 * width)):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.GroupNorm(8, after),
                nn.ReLU(),
            ]
        self.encoder = nn.Sequential(*layers)
        self.project = nn.Sequential(nn.Linear(4 * width, 64), nn.ReLU(), nn.Linear(64, 32))
        self.metrics = nn.ModuleDict(
            {
                f"{split}_{name}": MeanMetric()
                for split in ("val", "test")
                for name in ("loss", "pairs_found")
            }
        )

    def forward(self, images_BHW: torch.Tensor) -> torch.Tensor:
        """Return features [B, 4 * width]: the mean and the maximum of each channel."""
        maps = self.encoder(images_BHW[:, None])
        return torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1)

    def compare(self, views_BVHW):
        """Return the loss of each view [2B], and whether its other view is the most similar one."""
        first, second = views_BVHW.unbind(1)
        features = normalize(self.project(self(torch.cat([first, second]))), dim=1)
        alike = features @ features.T / self.temperature
        alike = alike.masked_fill(torch.eye(len(alike), dtype=torch.bool), -1e9)
        other = torch.arange(len(alike)).roll(len(first))
        return cross_entropy(alike, other, reduction="none"), alike.argmax(1) == other

    def training_step(self, batch, batch_idx):
        losses, _ = self.compare(batch["views"])
        self.log("train_loss", losses.mean(), batch_size=len(losses))
        return losses.mean()

    def validation_step(self, batch, batch_idx):
        self.measure("val", batch)

    def test_step(self, batch, batch_idx):
        self.measure("test", batch)

    def measure(self, split, batch):
        """Log the loss, and the fraction of views whose other view is found in the batch."""
        losses, found = self.compare(batch["views"])
        for name, values in (("loss", losses), ("pairs_found", found.float())):
            metric = self.metrics[f"{split}_{name}"]
            metric.update(values)
            self.log(f"{split}_{name}", metric, batch_size=len(losses))
