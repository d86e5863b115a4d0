"""What the shipped classifiers share: losses, metrics and their reduction over ranks."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError

Batch = tuple[torch.Tensor, ...] | dict[str, Any]


class Classifier(LightningModule):
    """Logs train_loss, val_loss and val_accuracy; a subclass defines `forward`.

    `forward` takes features [B, *feature_shape] and gives logits [B, C]. It has
    no optimiser of its own, so the run's `optim.*` and `schedule.*` apply.

    Attributes:
        column: what `forward` takes of a batch that is a dict by column; `labels` are beside it.
    """

    column = "features"

    def __init__(self) -> None:
        super().__init__()
        # Lightning's own mean rounds the mean batch size of the ranks down, which
        # is wrong where they do not divide the split (measured: 0.593 for 0.585)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the mean cross-entropy of one rank's part of a global batch.

        Args:
            batch: features, labels [B] and, under `data.last_batch=pad`, weights [B]; or these by
                column.
        """
        features, labels, *weights = self._parts(batch)
        losses = functional.cross_entropy(self(features), labels, reduction="none")
        loss = (losses * weights[0]).mean() if weights else losses.mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy, each sample of all ranks counting once."""
        features, labels = self._parts(batch)
        logits = self(features)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        self.val_loss.update(losses)
        self.val_accuracy.update((logits.argmax(dim=1) == labels).float())
        self.log_dict({"val_loss": self.val_loss, "val_accuracy": self.val_accuracy})

    def _parts(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        if not isinstance(batch, dict):
            return batch
        weights = [batch["weights"]] if "weights" in batch else []
        return batch[self.column], batch["labels"].long(), *weights


def refuse_numbers(model: str, num_classes: int) -> None:
    """Refuse a dataset without classes, whose labels a model that tells classes apart cannot predict.

    Args:
        model: its name, for the message.

    Raises:
        ConfigError: there are no classes.
    """
    if num_classes < 1:
        raise ConfigError(
            f"model={model} predicts a class for each row, but the dataset has none: its labels are numbers "
            "(task: regression); if they stand for classes, set source.task: classification and source.num_classes, "
            "else write a model class with one output for each row (docs/how-to/write-a-model.md)"
        )
