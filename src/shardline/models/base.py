"""What the shipped classifiers share: losses, metrics and their reduction over ranks."""

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional


class Classifier(LightningModule):
    """Logs train_loss, val_loss and val_accuracy; a subclass defines `forward`.

    `forward` takes features [B, *feature_shape] and gives logits [B, C]. It has
    no optimiser of its own, so the run's `optim.*` and `schedule.*` apply.
    """

    def training_step(
        self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int
    ) -> torch.Tensor:
        """Return the mean cross-entropy of one rank's part of a global batch."""
        features, labels = batch
        loss = functional.cross_entropy(self(features), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Log loss and accuracy, weighted by samples over all ranks."""
        features, labels = batch
        logits = self(features)
        metrics = {
            "val_loss": functional.cross_entropy(logits, labels),
            "val_accuracy": (logits.argmax(dim=1) == labels).float().mean(),
        }
        self.log_dict(metrics, batch_size=len(labels), sync_dist=True)
