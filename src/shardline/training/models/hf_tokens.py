"""The base class of transformers models that predict a label for each token."""

from typing import Any

import torch
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError, DataError
from shardline.data.collate import NamedBatch
from shardline.training.models.hf_inputs import (
    Limits,
    check_no_packs,
    read_tokens,
    row_mask,
)
from shardline.training.models.huggingface import HubConfig, make_hub_model
from shardline.training.models.model_inputs import SampleColumns, column_of, token_column
from shardline.training.models.outputs import predicted_tokens
from shardline.training.models.token_steps import MeasuredModel

IGNORED = -100  # label of a token that does not count, as in transformers


class TokenLabels(MeasuredModel):
    """A token model that logs train_loss, val_loss, val_accuracy, test_loss and test_accuracy.

    A batch contains tokens [B, L] in `column` and labels [B, L] in `labels`, -100 for tokens that do
    not count. With `{column}.lengths`, values after the end of a row are masked and do not count.

    Args:
        head: Class such as `AutoModelForTokenClassification`.
        sample_columns: Columns of the samples, from dataset and settings.
        config: Table with `model_type`, or folder with a `config.json`.
        pretrained: Folder with a `config.json` and the initial weights.
        column: Column of the tokens, integers less than the config's `vocab_size`.
        labels: Column of the labels, an integer for each token.
        sizes: Config values that the dataset determines.

    Attributes:
        hub: The transformers model.

    Raises:
        ConfigError: See `make_hub_model`; or the dataset has no such columns.
    """

    def __init__(
        self, head: str, sample_columns: SampleColumns, config: HubConfig,
        pretrained: str | None, column: str, labels: str, **sizes: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        token_column(sample_columns, column)
        check_no_packs(sample_columns, column)
        _check_labels(sample_columns, column, labels)
        self._column, self._labels = column, labels
        self.hub = make_hub_model(head, config, pretrained, **sizes)
        self._limits = Limits.of(self.hub)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()
        self.test_loss, self.test_accuracy = MeanMetric(), MeanMetric()

    def forward(self, batch: NamedBatch) -> torch.Tensor:
        """Return logits [B, L, C].

        Args:
            batch: Batch by column: tokens [B, L], and the rows' lengths [B] if these differ.
        """
        tokens = read_tokens(batch, self._column, self._limits)
        mask = row_mask(batch, self._column)
        logits: torch.Tensor = self.hub(input_ids=tokens, attention_mask=mask).logits
        return logits

    def measured(self, batch: NamedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each token's loss, whether its label is predicted, and its weight, 0 for none [B, L].

        Raises:
            DataError: Labels and tokens differ in shape, or a label is not a class of the model.
        """
        logits, labels = self(batch).float(), batch[self._labels].long()
        counts = self._counts(batch, labels, logits.shape[-1])
        wanted = torch.where(counts > 0, labels, IGNORED)
        # flat: the loss of [B, C, L] is not deterministic on a GPU
        losses = functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=IGNORED
        )
        right = (logits.argmax(dim=-1) == labels).float()
        return losses.view(counts.shape), right, counts

    def _counts(self, batch: NamedBatch, labels: torch.Tensor, classes: int) -> torch.Tensor:
        if labels.shape != batch[self._column].shape:
            raise DataError(
                f"column {self._labels} has shape {list(labels.shape)}, expected {list(batch[self._column].shape)} "
                f"as {self._column}; give each token a label, {IGNORED} for tokens that do not count"
            )
        mask = row_mask(batch, self._column)
        counts = labels != IGNORED
        if mask is not None:
            counts = counts & (mask > 0)
        if "weights" in batch:  # padding rows do not count
            counts = counts & (batch["weights"][:, None] > 0)
        bad = counts & ((labels < 0) | (labels >= classes))
        if bad.any():
            raise DataError(
                f"column {self._labels} has the label {int(labels[bad][0])}, expected 0 to {classes - 1:,}, or "
                f"{IGNORED} for a token that does not count; fix the source or the number of classes"
            )
        return counts.float()

    def predict_step(self, batch: NamedBatch, batch_idx: int) -> dict[str, torch.Tensor]:
        """Return the class of each token and its probability, see `predicted_tokens`."""
        lengths = batch.get(f"{self._column}.lengths")
        return predicted_tokens(self(batch), row_mask(batch, self._column), lengths)


def _check_labels(columns: SampleColumns, tokens: str, name: str) -> None:
    """Reject a column without a label for each token, if its type is known before samples are made."""
    column, of = column_of(columns, name, "model_args.labels"), column_of(columns, tokens, "")
    if column is None or of is None:
        return
    is_label = column.dtype.startswith("int") or column.dtype.startswith("uint")
    if column.kind != "array" or not is_label or (column.varies, column.shape) != (of.varies, of.shape):  # fmt: skip
        raise ConfigError(
            f"model_args.labels={name} is {column}, expected integers, one for each value of {tokens}, which is {of}; "
            f"add {name} to data.pack.with, or use another column"
        )
