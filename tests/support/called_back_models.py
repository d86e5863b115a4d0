"""Models with callbacks of Lightning's and of their own, for `simulated_kills`."""

import random
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks as lightning
from torch import nn

from tests.support.killed_models import RecordedModel


class Counts(pl.Callback):
    """Counts batches and validations, and lets both change the weights."""

    def __init__(self) -> None:
        self.batches = self.validations = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.batches += 1
        with torch.no_grad():
            [*pl_module.parameters()][-1].add_(0.001 * self.batches * (1 + self.validations))

    def on_validation_end(self, *_: Any) -> None:
        self.validations += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


class Looks(pl.Callback):
    """Changes nothing."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen = True

    def state_dict(self) -> dict[str, Any]:
        return {"seen": True}


class Draws(pl.Callback):
    """Draws a random number behind each validation."""

    def on_validation_end(self, *_: Any) -> None:
        random.random()


class Stops(pl.Callback):
    """Ends a training."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop |= trainer.current_epoch == self.epoch


class Saves(RecordedModel):
    """Saves files of its own: the best, the last, and one every three steps."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [
            *super().configure_callbacks(),
            lightning.ModelCheckpoint(),
            lightning.ModelCheckpoint("mine", monitor="val_loss", save_top_k=2, save_last=True),
            lightning.ModelCheckpoint("steps", monitor="train_loss", every_n_train_steps=3),
        ]


class Accumulating(RecordedModel):
    """Sums the gradients of more batches from its second epoch on."""

    def configure_callbacks(self) -> list[pl.Callback]:
        accumulation = lightning.GradientAccumulationScheduler({1: 2, 2: 3})
        return [*super().configure_callbacks(), accumulation, lightning.LearningRateMonitor()]


class Finetuned(RecordedModel):
    """Trains its body from its second epoch on, with a rate that grows."""

    @property
    def backbone(self) -> nn.Module:
        return self.body

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), lightning.BackboneFinetuning(1, verbose=False)]


class FinetunedByItself(Finetuned):
    """The same with an optimiser of its own."""

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Counted(RecordedModel):
    """Has a callback of its own, stops early twice, and looks on."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [
            *super().configure_callbacks(),
            Counts(),
            lightning.EarlyStopping("train_loss", patience=1),
            lightning.LambdaCallback(on_train_start=lambda *_: None),
        ]


class Rated(RecordedModel):
    """Has an optimiser of its own, whose rate is an argument."""

    def __init__(self, num_classes: int, learning_rate: float = 0.1) -> None:
        super().__init__(num_classes)
        self.rate = learning_rate

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.rate)
