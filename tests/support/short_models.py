"""Models whose hooks and callbacks make a training, a validation or an evaluation shorter."""

from typing import Any

from pytorch_lightning.callbacks import Callback

from tests.support.evaluated_model import Flat
from tests.support.killed_models import Counting


class Limits(Callback):
    """Sets attributes of the trainer when a training begins."""

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        for name, value in self._limits.items():
            setattr(trainer, name, value)


class FewTrained(Counting):
    """Trains on two batches of an epoch."""

    def configure_callbacks(self) -> Any:
        return [Limits(limit_train_batches=2)]


class FewValidated(Counting):
    """Validates on one batch."""

    def configure_callbacks(self) -> Any:
        return [Limits(limit_val_batches=1)]


class MaxSteps(Counting):
    """Ends Lightning's loop after two epochs."""

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        if self.current_epoch == 1:
            self.trainer.fit_loop.epoch_loop.max_steps = self.global_step


class FewTested(Flat):
    """Is tested on one batch."""

    def setup(self, stage: str) -> None:
        self.trainer.limit_test_batches = 1

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self(batch[0]).mean())


class FewJudged(Flat):
    """Has a validation_step alone, and sees one batch in it."""

    def setup(self, stage: str) -> None:
        self.trainer.limit_val_batches = 1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1.0)
