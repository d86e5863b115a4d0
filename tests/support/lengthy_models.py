"""Models and callbacks that read a training's length, or keep state that no training checkpoint contains."""

import itertools
import operator
import random
import threading
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn

from shardline.core.lightning_compat import epoch_reads, length_reads
from tests.support.killed_models import Averaged
from tests.support.simulated_kills import present

# ways to read the length of a training, or of an epoch
OF_TRAINING = {
    "max_epochs": lambda trainer: trainer.max_epochs,
    "max_steps": lambda trainer: getattr(trainer, "max_" + "steps"),
    "estimated_stepping_batches": operator.attrgetter("estimated_stepping_batches"),
    "fit_loop": lambda trainer: trainer.fit_loop.max_epochs,
    "fit_loop done": lambda trainer: trainer.fit_loop.done,
    "fit_loop max_steps": lambda trainer: trainer.fit_loop.epoch_loop.max_steps,
    "fit_loop batches": lambda trainer: trainer.fit_loop.max_batches,
    "fit_loop last": lambda trainer: trainer.fit_loop.epoch_loop.batch_progress.is_last_batch,
    "datamodule epochs": lambda trainer: trainer.datamodule.num_epochs,
    "datamodule steps": lambda trainer: trainer.datamodule.total_steps,
    "datamodule order": lambda trainer: trainer.datamodule.order,
    "datamodule loader": lambda trainer: len(trainer.datamodule.loader),
}
OF_EPOCH = {
    "num_training_batches": lambda trainer: trainer.num_training_batches,
    "train_dataloader": lambda trainer: len(trainer.train_dataloader),
    "is_last_batch": lambda trainer: trainer.is_last_batch,
    "val_check_batch": lambda trainer: trainer.val_check_batch,
}
# what two trainings of another length have in common
OF_NEITHER = {
    "place": lambda trainer: (trainer.current_epoch, trainer.global_step, trainer.sanity_checking),
    "settings": lambda trainer: (
        trainer.limit_train_batches, trainer.accumulate_grad_batches, trainer.check_val_every_n_epoch,
        trainer.val_check_interval, trainer.min_epochs, trainer.log_every_n_steps, trainer.num_val_batches,
        trainer.gradient_clip_val, trainer.overfit_batches, trainer.progress_bar_callback,
    ),
    "metrics": lambda trainer: (trainer.callback_metrics, trainer.logged_metrics, trainer.ckpt_path),
}  # fmt: skip
NOTED = threading.local()  # no variable of the model's code, which would change while it trains


class ReadsAll(Averaged):
    """Reads one after another in a step, and notes what is recorded of each."""

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        if self.global_step != 1:
            return
        for name, read in {**OF_TRAINING, **OF_EPOCH, **OF_NEITHER}.items():
            found = length_reads(self.trainer), epoch_reads(self.trainer)
            for one in found:
                one.clear()
            read(self.trainer)
            NOTED.of[name] = [[*one] for one in found]


class _Kept:
    def __init__(self) -> None:
        self.number = 0.0


RANDOM = np.random.default_rng(0)
SEEN = [0]


class Keeps(pl.LightningModule):
    """Multiplies its loss by a number that it keeps in a place of choice."""

    calls = 0

    def __init__(self, num_classes: int, place: str) -> None:
        super().__init__()
        self.head, self.place = nn.Linear(4, num_classes), place
        self.number = 0
        self.mean = torch.zeros(4)
        self.kept = _Kept()
        self.history: list[float] = []
        self.drawn = random.Random(0)
        self.noise = torch.Generator()
        self.counted = itertools.count()
        self.teacher = [nn.Linear(4, 1)]
        self.outputs: list[Any] = []
        self.constants = {"weights": torch.ones(3), "of": [self.head.weight]}
        self.register_buffer("steps", torch.zeros(()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)

    def configure_callbacks(self) -> list[Any]:
        made = {"callback": Counter, "saved callback": SavingCounter}
        return [made[self.place]()] if self.place in made else []

    def scale(self, features: torch.Tensor) -> Any:
        """Return the number of a step."""
        self.steps += 1
        self.outputs.append(features.mean())
        match self.place:
            case "number":
                self.number += 1
                return self.number
            case "shadow":
                self.calls += 1  # of the object, with the class's name
                return self.calls
            case "tensor":
                self.mean = 0.9 * self.mean + features.mean(0)
                return self.mean.sum()
            case "in place":
                return self.mean.add_(features.mean(0)).sum()
            case "object":
                self.kept.number += 1
                return self.kept.number
            case "list":
                self.history.append(float(features.mean()))
                return len(self.history)
            case "random":
                return self.drawn.random()
            case "generator":
                return torch.rand((), generator=self.noise)
            case "count":
                return next(self.counted)
            case "hidden module":
                with torch.no_grad():
                    return self.teacher[0].weight.mul_(0.9).sum()
            case "class":
                type(self).calls += 1
                return self.calls
            case "module's random":
                return RANDOM.random()
            case "module's list":
                SEEN[0] += 1
                return SEEN[0]
            case "buffer":
                return self.steps
        return 1

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        present().step = self.global_step
        present().pass_place("model.training_step")
        loss = nn.functional.cross_entropy(self.head(batch[0]), batch[1])
        return loss * (1 + 0.1 * self.scale(batch[0]))

    def on_train_batch_end(self, *args: Any) -> None:
        self.outputs.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.head(batch[0]), batch[1]))


KEPT = {  # where, and what a state says of it
    "number": "Keeps.number",
    "shadow": "Keeps.calls",
    "tensor": "Keeps.mean",
    "in place": "Keeps.mean",
    "object": "Keeps.kept",
    "list": "Keeps.history",
    "random": "Keeps.drawn",
    "generator": "Keeps.noise",
    "count": "Keeps.counted",
    "hidden module": "Keeps.teacher",
    "class": "Keeps.calls",
    "module's random": f"{__name__}.RANDOM",
    "module's list": f"{__name__}.SEEN",
    "callback": "Counter.steps",
    "saved callback": "",
    "buffer": "",
    "nowhere": "",
}


class Counter(pl.Callback):
    """Counts steps, and scales the weights by them."""

    def __init__(self) -> None:
        self.steps = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.steps += 1
        with torch.no_grad():
            pl_module.head.bias.mul_(1 - 0.01 * self.steps)


class SavingCounter(Counter):
    """Has its count in training checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]


def _end(trainer: Any, pl_module: Any) -> None:
    with torch.no_grad():
        pl_module.head.weight.mul_(2)
