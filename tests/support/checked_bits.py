"""A model that prints digests of its weights, from which the bits of `shardline check` can be compared."""

import hashlib

import torch
from pytorch_lightning import LightningModule

Batch = tuple[torch.Tensor, torch.Tensor]


class Bits(LightningModule):
    """A linear classifier with dropout."""

    def __init__(self, feature_shape: tuple[int, ...], num_classes: int) -> None:
        """Make the layer."""
        super().__init__()
        self.layer = torch.nn.Linear(*feature_shape, num_classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes]."""
        return self.layer(torch.nn.functional.dropout(features, 0.3, self.training))

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the loss, and print the digest of it and of the weights."""
        features, labels = batch
        loss = torch.nn.functional.cross_entropy(self(features), labels)
        weights = b"".join(each.detach().numpy().tobytes() for each in self.parameters())
        print("bits", loss.item().hex(), hashlib.sha256(weights).hexdigest(), flush=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss."""
        features, labels = batch
        loss = torch.nn.functional.cross_entropy(self(features), labels)
        self.log("val_loss", loss)
