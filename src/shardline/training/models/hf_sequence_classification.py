"""`hf:AutoModelForSequenceClassification`: a class for each row of tokens, by a model of transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError
from shardline.training.models.hf_inputs import (
    check_no_packs,
    check_tokens,
    read_tokens,
    row_mask,
    takes_last_token,
)
from shardline.training.models.huggingface import make_hub_model
from shardline.training.models.inputs import SampleColumns


class SequenceClassification(LightningModule):
    """Logs train_loss, val_loss, val_accuracy, test_accuracy and test_loss.

    A batch has the tokens [B, L] under `column` and `labels` [B]. Where `{column}.lengths` is
    there, values behind a row's end are masked.

    Args:
        num_classes: number of classes, from the dataset.
        sample_columns: columns of the samples, from dataset and settings.
        config: of the model: a table with `model_type`, or a folder with a `config.json`.
        pretrained: a folder with a `config.json` and the weights that the training begins from.
        column: integers, less than the config's `vocab_size`.

    Attributes:
        hub: the model of transformers.

    Raises:
        ConfigError: see `make_hub_model`; or the dataset has no classes or no such tokens.
    """

    def __init__(
        self, num_classes: int, sample_columns: SampleColumns = None, *,
        config: Mapping[str, Any] | str | None = None, pretrained: str | None = None,
        column: str = "tokens",
    ) -> None:  # fmt: skip
        super().__init__()
        if not num_classes:
            raise ConfigError(
                "model=hf:AutoModelForSequenceClassification was given a dataset without classes, expected labels "
                "that are classes; set num_classes or classes of the dataset's source"
            )
        check_tokens(sample_columns, column)
        check_no_packs(sample_columns, column)
        self._tokens = column
        self.hub = make_hub_model(
            "AutoModelForSequenceClassification", config, pretrained, num_labels=num_classes
        )
        self._takes_last = takes_last_token(self.hub)
        self.val_loss, self.val_accuracy = MeanMetric(), MeanMetric()
        self.test_loss, self.test_accuracy = MeanMetric(), MeanMetric()

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return logits [B, C].

        Args:
            batch: by column; the tokens [B, L], and the rows' lengths [B] where they differ.
        """
        tokens, mask = (
            read_tokens(batch, self._tokens, self.hub.config),
            row_mask(batch, self._tokens),
        )
        if not self._takes_last:
            logits: torch.Tensor = self.hub(input_ids=tokens, attention_mask=mask).logits
            return logits
        body = self.hub.base_model(input_ids=tokens, attention_mask=mask, use_cache=False)
        ends = batch.get(f"{self._tokens}.lengths", torch.tensor(tokens.shape[1])).to(tokens.device)
        rows = torch.arange(len(tokens), device=tokens.device)
        last: torch.Tensor = self.hub.score(body[0])[rows, (ends - 1).clamp(min=0)]
        return last

    def losses(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each row's loss [B], and whether its class was found [B]."""
        labels = batch["labels"].long()
        logits = self(batch).float()
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return losses, (logits.argmax(dim=1) == labels).float()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Return the mean loss of one rank's part of a global batch."""
        losses, _ = self.losses(batch)
        loss = (losses * batch["weights"]).mean() if "weights" in batch else losses.mean()
        self.log("train_loss", loss, batch_size=len(losses))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Log loss and accuracy, each row of all ranks counting once."""
        losses, right = self.losses(batch)
        self.val_loss.update(losses)
        self.val_accuracy.update(right)
        self.log_dict(
            {"val_loss": self.val_loss, "val_accuracy": self.val_accuracy}, batch_size=len(losses)
        )

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, torch.Tensor]:
        """Log accuracy and loss of held-out rows, likewise, and return each row's loss [B]."""
        losses, right = self.losses(batch)
        self.test_loss.update(losses)
        self.test_accuracy.update(right)
        self.log_dict(
            {"test_accuracy": self.test_accuracy, "test_loss": self.test_loss},
            batch_size=len(losses),
        )
        return {"sample_losses": losses}
