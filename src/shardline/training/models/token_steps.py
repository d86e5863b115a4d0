"""The training, validation and test steps of token models: mean loss and mean of one further measure."""

import torch
from pytorch_lightning import LightningModule
from torchmetrics import MeanMetric

from shardline.data.collate import NamedBatch
from shardline.training.losses import batch_mean


class MeasuredModel(LightningModule):
    """A model that logs train_loss, val_loss, test_loss and a further measure of validation and test.

    A subclass defines `measured`, and the metrics `val_loss`, `test_loss`, `val_{measure}` and `test_{measure}`.

    Attributes:
        measure: Name of the further measure.
        logged_as: Name under which the measure is logged.
    """

    _column = "tokens"  # private: only this column would be passed to `forward` if it were `column`
    measure = logged_as = "accuracy"

    def measured(self, batch: NamedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return losses [B, ...], values of the measure and weights (0 for none), in one shape."""
        raise NotImplementedError

    def training_step(self, batch: NamedBatch, batch_idx: int) -> torch.Tensor:
        """Return a loss in which all tokens of the global batch have the same weight, see `token_mean`.

        The logged `train_loss` is the mean over the counting tokens of this rank's batch.
        """
        losses, _, counts = self.measured(batch)
        mean = (losses.detach() * counts).sum() / counts.sum().clamp(min=1)
        self.log("train_loss", mean, batch_size=len(losses))
        return batch_mean(losses, counts, batch, self._column)

    def validation_step(self, batch: NamedBatch, batch_idx: int) -> None:
        """Log loss and measure; each value of all ranks counts once."""
        losses, _, loss, measure = self._update("val", batch)
        logged = {"val_loss": loss, f"val_{self.logged_as}": measure}
        self.log_dict(logged, batch_size=len(losses))

    def test_step(self, batch: NamedBatch, batch_idx: int) -> dict[str, torch.Tensor]:
        """Log loss and measure of held-out data, and return the mean loss of each sample [B]."""
        losses, counts, loss, measure = self._update("test", batch)
        logged = {f"test_{self.logged_as}": measure, "test_loss": loss}
        self.log_dict(logged, batch_size=len(losses))
        sums, size = ((of.reshape(len(of), -1).sum(1)) for of in (losses * counts, counts))
        return {"sample_losses": sums / size.clamp(min=1)}

    def _update(
        self, stage: str, batch: NamedBatch
    ) -> tuple[torch.Tensor, torch.Tensor, MeanMetric, MeanMetric]:
        losses, values, counts = self.measured(batch)
        loss, measure = getattr(self, f"{stage}_loss"), getattr(self, f"{stage}_{self.measure}")
        loss.update(losses, counts)
        measure.update(values, counts)
        return losses, counts, loss, measure
