"""Models that are validated with other weights than they are trained with, for `simulated_kills`."""

from copy import deepcopy
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    EMAWeightAveraging,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from tests.support.killed_models import RecordedModel


class Averaging(RecordedModel):
    """Lightning's moving average, of buffers too."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), EMAWeightAveraging(decay=0.8)]


class Hides(Averaging):
    """Has a buffer that no state holds, which the average has as well."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.copy_(0.7 * self.seen + batch[0].mean(0))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("seen", self.seen.sum())


class EachEpoch(WeightAveraging):
    """Averages the weights that epochs end with."""

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return epoch_idx is not None and epoch_idx >= 1


class ByEpochs(RecordedModel):
    """Is averaged at its epochs' ends."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), EachEpoch(use_buffers=False)]


class Stochastic(RecordedModel):
    """Lightning's average of epochs' weights, put in when the training ends, with statistics of its own."""

    def configure_callbacks(self) -> list[pl.Callback]:
        average = StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=3)
        return [*super().configure_callbacks(), average]


class StochasticPlain(Stochastic):
    """The same without BatchNorm, and with a schedule of its own before it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.body[1] = nn.LayerNorm(5)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


class StochasticBest(Stochastic):
    """The averages are the best that was validated."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        is_early = self.trainer.current_epoch < self.trainer.max_epochs
        self.log("val_loss", self.loss(batch) + is_early)


def exchange(mine: nn.Module, other: nn.Module) -> None:
    """Exchange the values of two modules of one form."""
    pairs = zip(mine.state_dict().values(), other.state_dict().values(), strict=True)
    for one, another in pairs:
        kept = one.clone()
        one.copy_(another)
        another.copy_(kept)


@torch.no_grad()
def follow(average: nn.Module, module: nn.Module) -> None:
    """Move an average towards a module's parameters, and take its buffers."""
    for mine, its in zip(average.parameters(), module.parameters(), strict=True):
        mine.lerp_(its, 0.3)
    for mine, its in zip(average.buffers(), module.buffers(), strict=True):
        mine.copy_(its)


class Shadow(pl.Callback):
    """A moving average by hand."""

    def __init__(self) -> None:
        self.average: nn.Module | None = None
        self.loaded: dict[str, Any] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.average = deepcopy(pl_module.head)
        self.average.load_state_dict(self.loaded or self.average.state_dict())

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        follow(self.average, pl_module.head)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        exchange(pl_module.head, self.average)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        exchange(pl_module.head, self.average)

    def state_dict(self) -> dict[str, Any]:
        return {key: value.clone() for key, value in self.average.state_dict().items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict


class ByCallback(RecordedModel):
    """Is averaged by a callback of its own, whose weights are in until the validation's last hook."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), Shadow()]


class ByHooks(RecordedModel):
    """Averages itself in a second module, which is exchanged with the first for a validation."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.average = deepcopy(self.head).requires_grad_(False)
        self.lists: list[Any] | None = None

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        follow(self.average, self.head)

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self.lists = []
        exchange(self.head, self.average)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.lists.append(batch[0].mean())

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        exchange(self.head, self.average)


class SecondModule(RecordedModel):
    """Is validated by a second module, which follows the first."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.average = deepcopy(self.head).requires_grad_(False)

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        follow(self.average, self.head)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return (self.head if self.training else self.average)(self.body(features))


class Rewrites(RecordedModel):
    """Keeps half of its weights out of its training checkpoints, and puts them back."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        state = dict(checkpoint["state_dict"])
        checkpoint["kept"] = {key: state.pop(key) for key in [*state] if key.startswith("head.")}
        checkpoint["state_dict"] = state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        checkpoint["state_dict"] = {**checkpoint["state_dict"], **checkpoint["kept"]}


class Compiled(RecordedModel):
    """Has a submodule that is compiled."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.head = torch.compile(self.head, backend="eager")


class Outside(RecordedModel):
    """Is validated with a number that its weights do not have."""

    scale = 1.0

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        self.scale += 0.1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch) * self.scale)


class Adapts(RecordedModel):
    """Trains on what it is validated with."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.head.bias.data += 0.01


class Probed(RecordedModel):
    """Sets a parameter when its validation is over, and a buffer."""

    def __init__(self, num_classes: int, is_parameter: bool = True) -> None:
        super().__init__(num_classes)
        self.register_buffer("threshold", torch.zeros(()))
        self.is_parameter = is_parameter

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.threshold.fill_(self.global_step)
        if self.is_parameter:
            self.head.bias.data += 1.0


class Lazy(RecordedModel):
    """Has a buffer that it makes only while it trains."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if not hasattr(self.head, "late"):
            self.head.register_buffer("late", torch.ones(()))
        return super().training_step(batch, batch_idx)
