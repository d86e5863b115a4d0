"""The base class of shipped models with one label per row: loss, metrics and their reduction over ranks."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest
from shardline.training.losses import token_mean
from shardline_io.column_names import MEAN_COUNT, WEIGHT

Batch = tuple[torch.Tensor, ...] | dict[str, Any]
Task = Literal["classification", "regression", "multilabel"]
# in a batch only if the rows have weights: their sum in the global batch, see `global_batch.Counted`
WEIGHT_COUNT = WEIGHT + MEAN_COUNT

_ERRORS: dict[str, Callable[..., torch.Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}


class Classifier(LightningModule):
    """A model of a class, of numbers or of several flags per row; subclasses define `forward`.

    `forward` maps features [B, *feature_shape] to logits [B, C] of classes, to numbers [B, T] in the
    units of the labels, or to logits [B, T] of flags. The class defines no optimiser, so the run's
    `optim.*` and `schedule.*` apply.

    It logs train_loss, val_loss and, by task, val_accuracy (classes; flags: share of right flags) or
    val_mae (numbers, in the units of the labels). If rows have weights, losses and metrics are
    weighted means.

    Args:
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels; 0 for classes.
        loss: For numbers `mse` (the default), `mae` or `huber`, of errors in standard deviations of
            the train split's labels.
        scale_targets: Whether the network's outputs are scaled by mean and standard deviation of the
            train split's labels, see `set_target_scale`.

    Attributes:
        column: Input column of `forward` in a batch by column, which also contains `labels`.
        label_task: Task of the labels.
        scales_targets: Whether outputs are scaled by the labels' mean and deviation.

    Raises:
        ConfigError: The loss is unknown, or is set for another task.
    """

    column = "features"
    target_mean: torch.Tensor
    target_std: torch.Tensor

    def __init__(
        self, *, task: Task = "classification", num_targets: int = 0, loss: str | None = None,
        scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if loss is not None and (task != "regression" or loss not in _ERRORS):
            remedy = (
                suggest(loss, _ERRORS)
                if task == "regression"
                else "drop it, or set task: regression"
            )
            raise ConfigError(
                f"model_args.loss={loss} is no loss for task: {task}, expected {', '.join(_ERRORS)} for "
                f"task: regression; {remedy}"
            )
        self.label_task, self._error = task, _ERRORS[loss or "mse"]
        # Lightning's own mean rounds down the mean batch size of the ranks, which is
        # wrong if the ranks do not divide the split (measured: 0.593 instead of 0.585)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()
        self.scales_targets = task == "regression" and scale_targets
        if self.scales_targets:
            self.register_buffer("target_mean", torch.zeros(num_targets))
            self.register_buffer("target_std", torch.ones(num_targets))

    def set_target_scale(self, mean: Any, std: Any) -> None:
        """Set mean and standard deviation [T] of the train split's labels, which are sealed with the weights.

        A constant target is not scaled.
        """
        mean, std = (torch.as_tensor(one, dtype=torch.float64) for one in (mean, std))
        self.target_mean.copy_(mean)
        self.target_std.copy_(torch.where(std > 0, std, 1.0))

    def scaled_back(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of the network in the units of the labels; logits are unchanged."""
        return outputs * self.target_std + self.target_mean if self.scales_targets else outputs

    def input_columns(self, batch: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns of a batch that `forward` gets, in order."""
        return (self.column,)

    def _row_losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row [B]."""
        if self.label_task == "classification":
            return functional.cross_entropy(outputs, labels, reduction="none")
        labels = labels.reshape(outputs.shape).to(outputs.dtype)
        if self.label_task == "multilabel":
            flags = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
            return flags.mean(dim=1)
        errors = outputs - labels
        errors = errors / self.target_std if self.scales_targets else errors
        return self._error(errors, torch.zeros_like(errors), reduction="none").mean(dim=1)

    def _trained_losses(
        self, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of each row [B] in training."""
        return self._row_losses(self(*inputs), labels)

    def _row_values(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the value of each row that validation averages beside the loss [B]."""
        if self.label_task == "classification":
            return (outputs.argmax(dim=1) == labels).float()
        labels = labels.reshape(outputs.shape)
        if self.label_task == "multilabel":
            return ((outputs > 0) == (labels > 0)).float().mean(dim=1)
        return (outputs - labels).abs().mean(dim=1)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the mean loss of this rank's part of a global batch.

        With weights of rows, ranks and accumulated batches return shares of `sum(w * loss) / sum(w)`
        over the global batch, see `losses.token_mean`.

        Args:
            batch: Tuple of features, labels [B] and, with `data.last_batch=pad`, weights [B]; or a
                dict of these columns.
            batch_idx: Index of the batch in the epoch.
        """
        inputs, labels, weights = self._parts(batch)
        losses = self._trained_losses(inputs, labels)
        if isinstance(batch, dict) and WEIGHT_COUNT in batch:
            counts = batch[WEIGHT] if weights is None else batch[WEIGHT] * (weights > 0)
            self.log("train_loss", token_mean(losses.detach(), counts, mean_count=counts.sum()))
            return token_mean(losses, counts, mean_count=batch[WEIGHT_COUNT])
        loss = losses.mean() if weights is None else (losses * weights).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and a further mean; each sample of all ranks counts once, or by its weight."""
        inputs, labels, _ = self._parts(batch)
        outputs = self(*inputs)
        is_weighted = isinstance(batch, dict) and WEIGHT_COUNT in batch
        counts = (batch[WEIGHT],) if isinstance(batch, dict) and is_weighted else ()
        self.val_loss.update(self._row_losses(outputs, labels), *counts)
        self.val_accuracy.update(self._row_values(outputs, labels), *counts)
        name = "val_mae" if self.label_task == "regression" else "val_accuracy"
        self.log_dict({"val_loss": self.val_loss, name: self.val_accuracy}, batch_size=len(labels))

    def _parts(
        self, batch: Batch
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor | None]:
        """Return the inputs of `forward`, the labels and, if batches may be padded, the weights."""
        if not isinstance(batch, dict):
            features, labels, *weights = batch
            return (features,), labels, weights[0] if weights else None
        inputs = tuple(batch[name] for name in self.input_columns(batch))
        labels = batch["labels"]
        labels = labels.long() if self.label_task == "classification" else labels
        return inputs, labels, batch.get("weights")


def num_outputs(model: str, num_classes: int, num_targets: int) -> int:
    """Return the number of outputs for a row: classes, numbers or flags.

    Args:
        model: Name of the model, for the message.
        num_classes: Number of classes of the dataset; 0 without classes.
        num_targets: Numbers or flags in a row's labels; 0 for classes.

    Raises:
        ConfigError: The dataset has neither classes nor numbers as labels.
    """
    if num_classes < 1 and num_targets < 1:
        raise ConfigError(
            f"model={model} predicts a class or numbers for each row, but the dataset has neither classes nor numbers "
            "as labels; set source.label, or the column `labels` of your own source (docs/how-to/write-a-source.md)"
        )
    return num_targets or num_classes
