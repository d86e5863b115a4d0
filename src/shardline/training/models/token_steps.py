"""Steps that the models of tokens share: means of losses and of one more measure, each value that counts once."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torchmetrics import MeanMetric

from shardline.training.losses import batch_mean


class MeasuredModel(LightningModule):
    """Logs train_loss, val_loss, test_loss, and the measure of validation and test.

    A subclass defines `measured`, and the metrics `val_loss`, `test_loss`, `val_{measure}` and `test_{measure}`.

    Attributes:
        measure: what is measured beside the loss.
        logged_as: what that is called where it is logged.
    """

    _column = "tokens"  # of a batch; an attribute `column` would be all that `forward` takes of it
    measure = logged_as = "accuracy"

    def measured(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return losses [B, ...], what is measured beside them, and what each counts, 0 for none."""
        raise NotImplementedError

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Return a loss whose gradient weighs the global batch's tokens alike, see `token_mean`.

        `train_loss` is the mean over the tokens of this rank's batch that count.
        """
        losses, _, counts = self.measured(batch)
        mean = (losses.detach() * counts).sum() / counts.sum().clamp(min=1)
        self.log("train_loss", mean, batch_size=len(losses))
        return batch_mean(losses, counts, batch, self._column)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Log loss and measure, each value of all ranks counting once."""
        losses, _, loss, measure = self._update("val", batch)
        logged = {"val_loss": loss, f"val_{self.logged_as}": measure}
        self.log_dict(logged, batch_size=len(losses))

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, torch.Tensor]:
        """Log loss and measure of held-out data, likewise, and return the mean loss of each sample [B]."""
        losses, counts, loss, measure = self._update("test", batch)
        logged = {f"test_{self.logged_as}": measure, "test_loss": loss}
        self.log_dict(logged, batch_size=len(losses))
        sums, size = ((of.reshape(len(of), -1).sum(1)) for of in (losses * counts, counts))
        return {"sample_losses": sums / size.clamp(min=1)}

    def _update(
        self, stage: str, batch: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor, MeanMetric, MeanMetric]:
        losses, values, counts = self.measured(batch)
        loss, measure = getattr(self, f"{stage}_loss"), getattr(self, f"{stage}_{self.measure}")
        loss.update(losses, counts)
        measure.update(values, counts)
        return losses, counts, loss, measure
