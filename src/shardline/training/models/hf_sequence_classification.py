"""`hf:AutoModelForSequenceClassification`: a transformers model that predicts classes or numbers of token rows."""

import torch
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError
from shardline.data.collate import NamedBatch
from shardline.training.models.hf_inputs import (
    Limits,
    check_no_packs,
    read_tokens,
    row_mask,
    takes_last_token,
)
from shardline.training.models.huggingface import HubConfig, make_hub_model
from shardline.training.models.model_inputs import SampleColumns, column_of, token_column
from shardline.training.models.outputs import CLASSES, FLAGS, NUMBERS, predicted_rows
from shardline.training.models.token_steps import MeasuredModel


class SequenceClassification(MeasuredModel):
    """A model of token rows that logs train_loss, val_loss, val_accuracy, test_loss and test_accuracy.

    A batch contains the tokens [B, L] in `column`, and `labels`. With `{column}.lengths`, values after
    the end of a row are masked. The labels determine the task:

    - classes [B];
    - numbers [B] or [B, K] in a float column: `_mae` (mean absolute error) is logged, not `_accuracy`;
    - flags [B, K] in an integer or boolean column.

    Args:
        num_classes: Number of classes, from the dataset.
        sample_columns: Columns of the samples, from dataset and settings.
        config: Table with `model_type`, or folder with a `config.json`.
        pretrained: Folder with a `config.json` and the initial weights.
        column: Column of the tokens, integers less than the config's `vocab_size`.

    Attributes:
        hub: The transformers model.

    Raises:
        ConfigError: See `make_hub_model`; or the dataset has no such labels or tokens.
    """

    def __init__(
        self, num_classes: int, sample_columns: SampleColumns = None, *,
        config: HubConfig = None, pretrained: str | None = None,
        column: str = "tokens",
    ) -> None:  # fmt: skip
        super().__init__()
        self._problem, num_labels = _problem_of(num_classes, sample_columns)
        given = {} if self._problem == CLASSES else {"problem_type": self._problem}
        token_column(sample_columns, column)
        check_no_packs(sample_columns, column)
        self._column = column
        self.hub = make_hub_model(
            "AutoModelForSequenceClassification", config, pretrained, num_labels=num_labels, **given
        )
        self._limits = Limits.of(self.hub)
        self.logged_as = "mae" if self._problem == NUMBERS else "accuracy"
        self._takes_last = takes_last_token(self.hub)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()
        self.test_loss, self.test_accuracy = MeanMetric(), MeanMetric()

    def forward(self, batch: NamedBatch) -> torch.Tensor:
        """Return logits [B, C].

        Args:
            batch: Batch by column: tokens [B, L], and the rows' lengths [B] if these differ.
        """
        tokens = read_tokens(batch, self._column, self._limits)
        mask = row_mask(batch, self._column)
        if not self._takes_last:
            logits: torch.Tensor = self.hub(input_ids=tokens, attention_mask=mask).logits
            return logits
        body = self.hub.base_model(input_ids=tokens, attention_mask=mask, use_cache=False)
        scores: torch.Tensor = self.hub.score(body[0])
        ends = batch.get(f"{self._column}.lengths")
        if ends is None:
            return scores[:, -1]
        # gather, since an index with arange(B) would fix the batch size of a traced program
        last = (ends.to(scores.device) - 1).clamp(min=0)[:, None, None]
        return scores.gather(1, last.expand(-1, 1, scores.shape[2]))[:, 0]

    def measured(self, batch: NamedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each row's loss [B], accuracy or, for numbers, mean absolute error [B], and ones [B]."""
        logits, labels = self(batch).float(), batch["labels"]
        if self._problem == CLASSES:
            labels = labels.long()
            losses = functional.cross_entropy(logits, labels, reduction="none")
            right = (logits.argmax(dim=1) == labels).float()
            return losses, right, torch.ones_like(losses)
        labels = labels.float().reshape(logits.shape)
        if self._problem == NUMBERS:
            losses, right = (logits - labels) ** 2, (logits - labels).abs()
        else:
            right = ((logits > 0) == (labels > 0)).float()
            losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return losses.mean(1), right.mean(1), torch.ones_like(losses[:, 0])

    def training_step(self, batch: NamedBatch, batch_idx: int) -> torch.Tensor:
        """Return the mean loss of this rank's part of a global batch."""
        losses, _, _ = self.measured(batch)
        loss = (losses * batch["weights"]).mean() if "weights" in batch else losses.mean()
        self.log("train_loss", loss, batch_size=len(losses))
        return loss

    def predict_step(self, batch: NamedBatch, batch_idx: int) -> dict[str, torch.Tensor]:
        """Return the predicted columns of each row, see `predicted_rows`."""
        return predicted_rows(self(batch), self._problem)


def _problem_of(num_classes: int, columns: SampleColumns) -> tuple[str, int]:
    """Return the kind of the labels, and the number of outputs for a row."""
    if num_classes:
        return CLASSES, num_classes
    column = column_of(columns, "labels", "labels") if columns and "labels" in columns else None
    if column and column.kind == "array" and not column.varies and not column.optional:
        count = column.shape[0] if column.shape else 1
        if column.dtype.startswith("float") and len(column.shape) <= 1:
            return NUMBERS, count
        if not column.dtype.startswith("float") and len(column.shape) == 1:
            return FLAGS, count
    raise ConfigError(
        "model=hf:AutoModelForSequenceClassification has a dataset without classes, whose labels are "
        f"{column or 'unknown'}, expected classes, numbers such as float32 or float32[3], or flags such as bool[5]; "
        "set num_classes or classes of the dataset's source, or change its column labels to one of these types"
    )
