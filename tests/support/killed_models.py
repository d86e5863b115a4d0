"""Models for `simulated_kills`: each keeps something between steps that a resume may lose.

All of them, and a callback of theirs, record each hook with the counters that it sees.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.checkpoints.boundaries import is_in_epoch
from tests.support.simulated_kills import present

# But those of set-up, fit start and loading, which each attempt calls, and of saving.
_BOTH = (
    "on_train_end", "on_fit_end", "on_train_epoch_start", "on_train_epoch_end", "on_train_batch_start",
    "on_train_batch_end", "on_validation_start", "on_validation_end", "on_validation_epoch_start",
    "on_validation_epoch_end", "on_validation_batch_start", "on_validation_batch_end",
    "on_before_zero_grad", "on_before_optimizer_step", "on_before_backward", "on_after_backward",
)  # fmt: skip
_OF_MODELS = ("on_validation_model_zero_grad", "lr_scheduler_step", "on_before_batch_transfer")
_OF_PROGRESS = ("ready", "started", "processed", "completed")


def recorded(owner: str, names: tuple[str, ...]) -> Callable[[type], type]:
    """Have the hooks of a class record themselves before they do anything."""

    def decorate(cls: type) -> type:
        for name in names:
            setattr(cls, name, _recording(owner, name, getattr(cls, name)))
        return cls

    return decorate


def _recording(owner: str, name: str, hook: Any) -> Any:
    def record_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer if isinstance(self, pl.LightningModule) else args[0]
        # not `trainer.fit_loop`, which reads of the length are noted for
        fit, attempt = vars(trainer)["fit_loop"], present()
        attempt.step = trainer.global_step
        progress = (fit.epoch_progress.total, fit.epoch_progress.current)
        batches = (fit.epoch_loop.batch_progress.total, fit.epoch_loop.batch_progress.current)
        counters = [tuple(getattr(one, n) for n in _OF_PROGRESS) for one in (*progress, batches[1])]
        place = f"{owner}.{name}"
        indexes = [a for a in args if isinstance(a, int)]
        shown = sorted(
            (k, float(v)) for k, v in trainer._logger_connector._callback_metrics.items()
        )
        attempt.events.append(
            (
                place, trainer.global_step, fit.epoch_loop._batches_that_stepped,
                fit.epoch_loop.batch_progress.is_last_batch, batches[0].ready, *counters, *indexes, *shown,
            )
        )  # fmt: skip
        attempt.pass_place(place)
        return hook(self, *args, **kwargs)

    return record_and_call


@recorded("callback", _BOTH)
class Recorder(pl.Callback):
    """Records the hooks of callbacks."""


@recorded("model", (*_BOTH, *_OF_MODELS))
class RecordedModel(pl.LightningModule):
    """Records its hooks; a classifier of four features, with dropout and batch norm."""

    def __init__(self, num_classes: int, width: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(width, num_classes)
        self.resumed: Any = None

    def configure_callbacks(self) -> list[pl.Callback]:
        return [Recorder()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        own = checkpoint["callbacks"]["LastCheckpoint"]
        self.resumed = checkpoint["global_step"], own["is_mid_epoch"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        place = self.trainer.global_step, is_in_epoch(self.trainer)
        present().events.append(("saved", place))
        present().pass_place("model.on_save_checkpoint")

    def on_fit_start(self) -> None:
        present().events.append(("began", self.resumed))
        present().pass_place("model.on_fit_start")

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(features))

    def loss(self, batch: Any) -> torch.Tensor:
        losses = functional.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return (losses * batch[2] if len(batch) > 2 else losses).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        present().pass_place("model.training_step")
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        present().pass_place("model.validation_step")
        self.log("val_loss", self.loss(batch))


class Averaged(RecordedModel):
    """Keeps a moving average of its weights in a buffer, and validates with it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("average", self.head.weight.detach().clone())

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        self.average = 0.9 * self.average + 0.1 * self.head.weight.detach()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("distance", (self.average - self.head.weight).square().sum())


class Counting(RecordedModel):
    """Counts in hooks of epochs and validations, and lets the counts change its loss."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("counts", torch.zeros(3))

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.counts[0] += 1

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.counts[1] += self.counts[0]

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self.counts[2] += 1

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss(batch) * (1 + 0.1 * self.counts.sum())


class Momentum(torch.optim.Optimizer):
    """An optimiser of nobody's, with a plain number in its state."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            group["steps"] += 1
            for weight in group["params"]:
                state = self.state[weight]
                state["mean"] = 0.8 * state.get("mean", 0.0) + weight.grad
                state["calls"] = state.get("calls", 0) + 1
                weight -= group["lr"] / state["calls"] ** 0.5 * state["mean"]
        return loss


class OwnOptimizer(Counting):
    """Has an optimiser of its own, and two schedules: by step and by epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = Momentum(self.parameters(), 0.1)
        schedules = torch.optim.lr_scheduler
        step = schedules.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3, cycle_momentum=False)
        epoch = schedules.LambdaLR(optimizer, lambda n: 0.9**n)
        return [optimizer], [
            {"scheduler": step, "interval": "step", "frequency": 2},
            {"scheduler": epoch, "interval": "epoch"},
        ]


class Plateau(RecordedModel):
    """Lowers its learning rate by what it has measured, with drawn numbers in many hooks."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.noise = MeanMetric()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        schedule = {"scheduler": plateau, "monitor": "drawn", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        features, *rest = super().on_before_batch_transfer(batch, dataloader_idx)
        return (features + 0.01 * draw(), *rest)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.noise.update(draw())
        self.log("noise", self.noise, on_step=False, on_epoch=True)
        self.log("least", loss, on_step=False, on_epoch=True, reduce_fx="min")
        if batch_idx == 0:
            self.log("first", loss, on_step=True, on_epoch=True)
        return loss

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("drawn", draw())


def draw() -> torch.Tensor:
    """Draw a number with each generator that a state keeps."""
    return torch.rand(()) + random.random() + np.random.rand()


class Duel(RecordedModel):
    """Takes its steps itself, with two optimisers of which one sums gradients over three batches."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        body = torch.optim.Adam(self.body.parameters(), 0.02)
        head = torch.optim.SGD(self.head.parameters(), 0.1, momentum=0.5)
        return [body, head], [torch.optim.lr_scheduler.StepLR(body, 2, 0.9)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        present().pass_place("model.training_step")
        body, head = self.optimizers()
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.manual_backward(loss)
        body.step()
        body.zero_grad()
        if batch_idx % 3 == 2:
            head.step()
            head.zero_grad()
            self.lr_schedulers().step()


class Hidden(RecordedModel):
    """Keeps what it learns of the data in buffers that its sealed model lacks, one of them made late."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def loss(self, batch: Any) -> torch.Tensor:
        if self.training:
            self.seen = 0.7 * self.seen + batch[0].mean(0)
            if not hasattr(self.head, "late"):
                self.head.register_buffer("late", torch.zeros(()), persistent=False)
            self.head.late = self.head.late + 0.1
        return super().loss((batch[0] + self.seen, *batch[1:])) * (1 + self.head.late)


class Stopping(Averaged):
    """Gets worse from its second epoch on."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("score", abs(self.current_epoch - 1) + 0.01 * self.head.weight.mean())


class StopsItself(Counting):
    """Ends the training in mid-epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 7:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


class SkipsTheRest(Counting):
    """Leaves out the rest of its second epoch, and that epoch's validation with it."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        super().on_train_batch_start(batch, batch_idx)
        return -1 if self.current_epoch == 1 and batch_idx == 2 else None


class Thawing(Counting):
    """Trains its body only from its second epoch on."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        if self.current_epoch == 0:
            self.body.requires_grad_(False)
            self.body.eval()
        if self.current_epoch == 1:
            self.body.requires_grad_(True)
            self.body.train()


class Wild(Counting):
    """Has an infinite loss in one step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.inf if self.global_step == 6 else loss
