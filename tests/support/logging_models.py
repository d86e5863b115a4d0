"""Models for `simulated_kills` that log metrics under names of every kind."""

from typing import Any

import torch
from torchmetrics import MaxMetric
from torchmetrics.classification import MulticlassAccuracy

from tests.support.killed_models import RecordedModel


class Named(RecordedModel):
    """Logs numbers and torchmetrics under names with slashes, spaces, brackets and dots, and waits for one of them."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.train_acc = MulticlassAccuracy(num_classes)
        self.val_acc = MulticlassAccuracy(num_classes)
        self.val_acc_best = MaxMetric()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "loss (val)", "interval": "epoch"},
        }

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.train_acc(self(batch[0]), batch[1])
        self.log("train/acc", self.train_acc, on_step=True, on_epoch=True)
        self.log("loss (train)", loss)
        self.log("a.b c", loss.detach() * 2, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.val_acc(self(batch[0]), batch[1])
        self.log_dict({"val/acc": self.val_acc, "loss (val)": self.loss(batch)})

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True)
