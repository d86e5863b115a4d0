"""Make the optimiser and schedule of a run's settings, for models that define none."""

import inspect
import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden

from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Optim, Schedule
from shardline.core.errors import ConfigError


def _as_arguments(cls: type, settings: Sequence[str]) -> str:
    """Return the remedy that makes settings arguments of the model's constructor."""
    names = [setting.rpartition(".")[2] for setting in settings]
    known = inspect.signature(cls).parameters
    missing = ", ".join(name for name in names if name not in known)
    s, columns = "s" * (len(names) > 1), ", ".join(f"model_args.{name}" for name in names)
    if not missing or any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return f"rename the column{s} to {columns}"
    arguments = "arguments" if "," in missing else "an argument"
    return f"give the constructor {arguments} {missing} and name the column{s} {columns}"


def attach_optimizer(
    model: pl.LightningModule,
    spec: RunSpec,
    *,
    total_steps: Callable[[], int],
    set_by_row: Sequence[str] = (),
) -> None:
    """Give a model the optimiser and schedule of its run, unless it defines `configure_optimizers`.

    Args:
        set_by_row: Dotted keys that the run's own row sets.
        total_steps: Function that returns the optimiser steps of the whole training, at which
            schedules end, once the callbacks are known. (Lightning's estimate would load the data
            before the state is restored, and lose the resumed position.)

    Raises:
        ConfigError: The run's row sets `optim.*` or `schedule.*`, and the
            model's `configure_optimizers` would ignore the value.
    """
    if is_overridden("configure_optimizers", model):
        ignored = [key for key in set_by_row if key.startswith(("optim.", "schedule."))]
        if ignored:
            raise ConfigError(
                f'run "{spec.title}" sets {", ".join(ignored)}, but {spec.model} has its own configure_optimizers, '
                f"which ignores these settings; {_as_arguments(type(model), ignored)}, or remove the method"
            )
        return
    settings = spec.settings

    def configure_optimizers(self: pl.LightningModule) -> dict[str, Any]:
        world_size = settings.nodes * settings.devices
        optimizer = make_optimizer(self, settings.optim, world_size)
        schedule = make_schedule(optimizer, settings.schedule, total_steps())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    model.configure_optimizers = MethodType(configure_optimizers, model)  # type: ignore[method-assign]


def make_optimizer(
    model: torch.nn.Module, settings: Optim, world_size: int
) -> torch.optim.Optimizer:
    """Make the optimiser of a model's trainable parameters.

    With `scale_lr` the learning rate is multiplied by the world size (linear
    scaling rule, Goyal et al. 2017, arXiv:1706.02677).
    """
    lr = settings.lr * (world_size if settings.scale_lr else 1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    common: dict[str, Any] = {"lr": lr, "weight_decay": settings.weight_decay}
    match settings.name:
        case "sgd":
            return torch.optim.SGD(parameters, momentum=settings.momentum, **common)
        case "adam":
            return torch.optim.Adam(parameters, **common)
        case _:
            return torch.optim.AdamW(parameters, **common)


def lr_factor(step: int, *, name: str, warmup_steps: int, total_steps: int) -> float:
    """Return the learning rate factor at a step: linear warm-up, then the named schedule."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    match name:
        case "linear":
            return max(0.0, 1 - progress)
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        case _:
            return 1.0


class LambdaLR(torch.optim.lr_scheduler.LambdaLR):
    """Schedule of the groups that the optimiser begins with.

    A callback such as `BackboneFinetuning` adds groups, and sets their learning rates itself.
    """

    def get_lr(self) -> list[Any]:
        """Return the learning rate of each group."""
        scheduled = super().get_lr()
        return [*scheduled, *(one["lr"] for one in self.optimizer.param_groups[len(scheduled) :])]


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: Schedule, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Make the learning rate schedule over `total_steps` optimiser steps."""
    return LambdaLR(
        optimizer,
        lambda step: lr_factor(
            step,
            name=settings.name,
            warmup_steps=settings.warmup_steps,
            total_steps=total_steps,
        ),
    )
