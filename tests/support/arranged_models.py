"""Models that register what they have in an order of the process, as the order of a set is.

`SHARDLINE_TEST_ORDER` says which. Initial values follow from names, so that an unbroken training does not depend
on it.
"""

import os
import random
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torchmetrics import MaxMetric, MeanMetric

from tests.support.killed_models import RecordedModel, Recorder
from tests.support.simulated_kills import present

ORDER = "SHARDLINE_TEST_ORDER"
lr_scheduler = torch.optim.lr_scheduler


def arranged(items: Iterable[Any]) -> list[Any]:
    """Return things in the order of this process."""
    found = [*items]
    random.Random(os.environ.get(ORDER, "0")).shuffle(found)
    return found


def begin_by_name(module: nn.Module) -> None:
    """Give each parameter initial values that follow from its name."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.rand(parameter.shape, generator=generator)
        with torch.no_grad():
            parameter.copy_(drawn - 0.5)


class Kept(pl.Callback):
    """Keeps a number of its own, which it adds to a buffer."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, len(name)

    @property
    def state_key(self) -> str:
        return f"Kept {self.name}"

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.count = self.count * 7 % 101
        getattr(pl_module, self.name).add_(self.count / 1000)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


class Arranged(RecordedModel):
    """Layers of one shape, tied ones, buffers, metrics and callbacks, in the order of the process."""

    def __init__(self, num_classes: int) -> None:
        pl.LightningModule.__init__(self)
        self.resumed = None
        body = nn.Linear(4, 4)
        drops = {"p": nn.Dropout(0.1), "q": nn.Dropout(0.3)}
        parts: dict[str, Any] = {
            "alpha": nn.Linear(4, 4), "beta": nn.Linear(4, 4), "gamma": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4),
            "scale": nn.Parameter(torch.ones(4)), "shift": nn.Parameter(torch.ones(4)), "tied": body, "twin": body,
            "low": torch.zeros(4), "high": torch.zeros(4), "mean": MeanMetric(), "most": MaxMetric(),
            "head": nn.Linear(4, num_classes), "drop": nn.ModuleDict({k: drops[k] for k in arranged(drops)}),
        }  # fmt: skip
        for name in arranged(parts):
            if isinstance(parts[name], nn.Module):
                self.add_module(name, parts[name])
            elif isinstance(parts[name], nn.Parameter):
                self.register_parameter(name, parts[name])
            else:
                self.register_buffer(name, parts[name], persistent=name == "low")
        begin_by_name(self)

    def configure_callbacks(self) -> list[pl.Callback]:
        return [Recorder(), *(Kept(name) for name in arranged(["low", "high"]))]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.alpha(features)) + 3 * self.beta(features) * self.scale + self.low
        found = self.norm(found * self.gamma(features) + self.drop["p"](self.tied(features)))
        return self.head(self.drop["q"](found + self.shift) + self.high)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        for metric in (self.mean, self.most):
            metric.update(loss.detach())
            self.log(type(metric).__name__, metric, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.02)


def parted(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return three groups of a model's parameters, the parameters of each in the model's order."""
    groups: dict[str, list[nn.Parameter]] = {"alpha": [], "beta": [], "rest": []}
    for name, parameter in module.named_parameters():
        groups[name.split(".")[0] if name.split(".")[0] in groups else "rest"].append(parameter)
    return groups


LRS = {"alpha": 0.1, "beta": 0.02, "rest": 0.005}


class Groups(Arranged):
    """Groups of other rates, with a schedule whose lists are by group."""

    schedule = "lambdas"

    def configure_optimizers(self) -> Any:
        groups, names = parted(self), arranged(LRS)
        optimizer = torch.optim.SGD(
            [{"params": groups[n], "lr": LRS[n], "weight_decay": LRS[n] / 10} for n in names], momentum=0.8
        )  # fmt: skip
        rates = [LRS[name] for name in names]
        plateau = lr_scheduler.ReduceLROnPlateau
        make: Any = {
            "lambdas": lambda: lr_scheduler.LambdaLR(
                optimizer, [lambda step, n=n: 0.8 ** (step * len(n) / 4) for n in names]
            ),
            "cyclic": lambda: lr_scheduler.CyclicLR(
                optimizer, rates, [5 * rate for rate in rates], step_size_up=3
            ),
            "sequence": lambda: lr_scheduler.SequentialLR(
                optimizer,
                [
                    lr_scheduler.LinearLR(optimizer, 0.2),
                    lr_scheduler.CosineAnnealingLR(optimizer, 9),
                ],
                [3],
            ),
            "plateau": lambda: plateau(optimizer, "max", 0.3, 0, min_lr=[r / 5 for r in rates]),
            "own": lambda: ByGroup(optimizer, [len(name) for name in names]),
        }
        schedule = {"scheduler": make[self.schedule](), "monitor": "val_loss"}
        schedule["interval"] = "epoch" if self.schedule == "plateau" else "step"
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Cyclic(Groups):
    """Learning rates and momenta go up and down."""

    schedule = "cyclic"


class Sequence(Groups):
    """Schedules within a schedule."""

    schedule = "sequence"


class AtPlateau(Groups):
    """Least learning rates by group."""

    schedule = "plateau"


class ByGroup(lr_scheduler.LRScheduler):
    """Somebody's schedule, with a list by group under a name of its own."""

    def __init__(self, optimizer: Any, lengths: list[int]) -> None:
        self.lengths = lengths
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        pairs = zip(self.base_lrs, self.lengths, strict=True)
        return [lr * 0.8 ** (self.last_epoch * length / 4) for lr, length in pairs]


class OwnSchedule(Groups):
    """Its schedule's lists are not known."""

    schedule = "own"


class Several(Arranged):
    """Takes its steps itself, with two optimisers in the order of the process, each with its schedule."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        groups, schedules = parted(self), []
        self.roles = arranged(["alpha", "rest"])
        made = {
            "alpha": torch.optim.Adam(groups["alpha"] + groups["beta"], 0.03),
            "rest": torch.optim.Adam(groups["rest"], 0.01),
        }
        for role in self.roles:
            gamma = 0.9 if role == "alpha" else 0.95
            schedules.append(lr_scheduler.ExponentialLR(made[role], gamma))
        return [made[role] for role in self.roles], schedules

    def training_step(self, batch: Any, batch_idx: int) -> None:
        present().pass_place("model.training_step")
        self.manual_backward(self.loss(batch))
        places = [self.roles.index("alpha")] + [self.roles.index("rest")] * (batch_idx % 3 == 2)
        for place in places:
            self.optimizers()[place].step()
            self.optimizers()[place].zero_grad()
            self.lr_schedulers()[place].step()


class Hidden(Arranged):
    """Its optimiser alone has a parameter."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.hidden = [nn.Parameter(torch.full((2, 4), 0.1))]

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss((batch[0] + self.hidden[0].sum(0), *batch[1:]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(arranged([*self.parameters(), *self.hidden]), 0.02)


class HiddenPair(Hidden):
    """Two of them, of one shape."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.hidden.append(nn.Parameter(torch.full((2, 4), 0.2)))


class Listed(Arranged):
    """A list of layers in the order of the process, which differ in `differ` alone."""

    differ = ""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        names = arranged(["one", "three", "eleven"])
        self.layers = nn.ModuleList(self.make(name) for name in names)
        if self.differ == "list":
            self.order = names

    def make(self, name: str) -> nn.Module:
        if self.differ == "shape":
            return nn.Linear(4, len(name))
        if self.differ == "class":
            return {"one": nn.ReLU, "three": nn.Tanh, "eleven": nn.SiLU}[name]()
        if self.differ == "argument":
            return nn.Dropout(len(name) / 10 + (name == "eleven") / 20)
        layer = nn.Linear(4, 4)
        nn.init.constant_(layer.weight, {"one": 1.0, "three": 3.0, "eleven": 7.0}[name])
        if self.differ != "value":
            nn.init.constant_(layer.weight, 1.0)
            layer.kind = name if self.differ == "attribute" else ""
        return layer


class ByShape(Listed):
    differ = "shape"


class ByClass(Listed):
    differ = "class"


class ByArgument(Listed):
    differ = "argument"


class ByValue(Listed):
    differ = "value"


class ByAttribute(Listed):
    differ = "attribute"


class ByList(Listed):
    differ = "list"


class Chained(Arranged):
    """Named layers, one after the other, in the order of the process."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        layers = [(name, nn.Linear(4, 4)) for name in arranged(["one", "three", "eleven"])]
        self.chain = nn.Sequential(OrderedDict(layers))
        begin_by_name(self)


class Split(Arranged):
    """Its groups are the halves of its parameters, whatever these are."""

    def configure_optimizers(self) -> Any:
        parameters = [*self.parameters()]
        half = len(parameters) // 2
        return torch.optim.Adam([{"params": parameters[:half]}, {"params": parameters[half:]}], 0.02)  # fmt: skip


class Shadows(pl.Callback):
    """Keeps the first weights in a list, as packages for averages do."""

    def __init__(self) -> None:
        self.shadows: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.shadows = self.shadows or [p.detach().clone() for p in pl_module.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"shadow_params": self.shadows}


class Shadowed(Arranged):
    """Has such a callback."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), Shadows()]


class KeptHere(Kept):
    """Its key is another in each process."""

    @property
    def state_key(self) -> str:
        return f"Kept {self.name} {os.environ.get(ORDER)}"


class Unkeyed(Arranged):
    """Has such a callback."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [Recorder(), KeptHere("low")]


class Frozen(Arranged):
    """Trains its tied layer, which has two names, from its second epoch on."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.tied.requires_grad_(self.current_epoch > 0)
