"""Models for `simulated_kills` that log metrics under names of every kind."""

from typing import Any

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
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


class Saving(Named):
    """Has a writer of checkpoints of its own."""

    def configure_callbacks(self) -> list[Any]:
        return [*super().configure_callbacks(), ModelCheckpoint(monitor="val/acc")]


class Drawing(Named):
    """Gives its logger images, tables, texts and numbers in every hook that an attempt or a resume may repeat."""

    def _draw(self, where: str) -> None:
        place = self.trainer.global_step
        self.logger.log_image(
            f"{where}/image", [self.head.weight.detach().sigmoid()], caption=[where]
        )
        self.logger.log_table(f"{where} table", columns=["step", "name"], data=[[place, where]])
        self.logger.log_text(where, f"text at {place}")
        self.logger.log_metrics({f"{where}.number": place})

    def setup(self, stage: str) -> None:
        self._draw("setup")

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._draw("fit_start")

    def on_train_start(self) -> None:
        self._draw("train_start")
        self.logger.log_hyperparams({"a": 1})
        self.logger.log_graph(self)

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._draw("epoch_start")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx % 2:
            self._draw("step")
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        if args[-1] == 1:
            self._draw("batch_end")

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._draw("validation")

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self._draw("epoch_end")

    def on_train_end(self) -> None:
        super().on_train_end()
        self._draw("train_end")

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self._draw("fit_end")
