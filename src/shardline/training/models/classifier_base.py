"""The base class of shipped classifiers: loss, metrics and their reduction over ranks."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError

Batch = tuple[torch.Tensor, ...] | dict[str, Any]


class Classifier(LightningModule):
    """A classifier that logs train_loss, val_loss and val_accuracy; subclasses define `forward`.

    `forward` maps features [B, *feature_shape] to logits [B, C]. The class defines no optimiser, so
    the run's `optim.*` and `schedule.*` apply.

    Attributes:
        column: Input column of `forward` in a batch by column, which also contains `labels`.
    """

    column = "features"

    def __init__(self) -> None:
        super().__init__()
        # Lightning's own mean rounds down the mean batch size of the ranks, which is
        # wrong if the ranks do not divide the split (measured: 0.593 instead of 0.585)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the mean cross-entropy of this rank's part of a global batch.

        Args:
            batch: Tuple of features, labels [B] and, with `data.last_batch=pad`, weights [B]; or a
                dict of these columns.
            batch_idx: Index of the batch in the epoch.
        """
        features, labels, *weights = self._parts(batch)
        losses = functional.cross_entropy(self(features), labels, reduction="none")
        loss = (losses * weights[0]).mean() if weights else losses.mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy; each sample of all ranks counts once."""
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
    """Reject a dataset without classes, which a classifier cannot predict.

    Args:
        model: Name of the model, for the message.
        num_classes: Number of classes of the dataset.

    Raises:
        ConfigError: The dataset has no classes.
    """
    if num_classes < 1:
        raise ConfigError(
            f"model={model} predicts a class for each row, but the dataset has no classes: its labels are numbers "
            "(task: regression); if the numbers are classes, set source.task: classification and source.num_classes, "
            "else write a model class with one output for each row (docs/how-to/write-a-model.md)"
        )
