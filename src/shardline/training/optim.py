"""Make the optimiser and schedule of a run's settings, for models that define none."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden

from shardline.config.checked_optim import MATCH, SHIPPED_OPTIMISERS, SHIPPED_SCHEDULES
from shardline.config.resolved import RunSpec, as_plain
from shardline.config.schedules import is_of_training, too_short
from shardline.config.settings.optim_settings import Optim, Schedule
from shardline.core.construct import make_object, parameters_of
from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError
from shardline.core.objects import NamedObject, read_value
from shardline.core.suggest import did_you_mean
from shardline.training.parameters import parameter_groups


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


UNUSED_BESIDE_OWN = (
    "optim.",
    "schedule.",
)  # settings that a model's `configure_optimizers` ignores


def has_own_optimizer(model: pl.LightningModule) -> bool:
    """Return whether the class of a model defines `configure_optimizers`."""
    of = type(model).configure_optimizers.__module__
    return not of.startswith(("pytorch_lightning.", "lightning."))


def attach_optimizer(
    model: pl.LightningModule,
    spec: RunSpec,
    *,
    total_steps: Callable[[], int],
    num_epochs: int = 0,
    set_by_row: Sequence[str] = (),
) -> None:
    """Give a model the optimiser and schedule of its run, unless it defines `configure_optimizers`.

    Args:
        num_epochs: Epochs of the training.
        total_steps: Function that returns the optimiser steps at which the schedule ends,
            once the callbacks are known. (Lightning's estimate would load the data
            before the state is restored, and lose the resumed position.)
        set_by_row: Dotted keys that the run's own row sets.

    Raises:
        ConfigError: The run's row sets `optim.*` or `schedule.*`, and the
            model's `configure_optimizers` would ignore the value.
    """
    if is_overridden("configure_optimizers", model):
        ignored = [key for key in set_by_row if key.startswith(UNUSED_BESIDE_OWN)]
        if ignored:
            raise ConfigError(
                f'run "{spec.title}" sets {", ".join(ignored)}, but {spec.model} has its own configure_optimizers, '
                f"which ignores these settings; {_as_arguments(type(model), ignored)}, or remove the method"
            )
        return
    settings = spec.settings

    def configure_optimizers(self: pl.LightningModule) -> dict[str, Any]:
        world_size, where = settings.nodes * settings.devices, f'run "{spec.title}"'
        optimizer = make_optimizer(self, settings.optim, world_size, where)
        steps, epochs = total_steps(), settings.schedule.epochs or num_epochs
        schedule = make_schedule(
            optimizer, settings.schedule, steps, num_epochs=epochs, where=where
        )
        has_end = settings.schedule.epochs or settings.schedule.steps
        is_own = is_of_training(as_plain(settings.schedule), as_plain(settings.trainer))
        if has_end and not (isinstance(schedule, LambdaLR) or is_own):
            _hold(self, (steps if settings.schedule.interval == "step" else epochs) - 1)
        taken: dict[str, Any] = {"scheduler": schedule, "interval": settings.schedule.interval}
        if settings.schedule.monitor is not None:
            taken["monitor"] = settings.schedule.monitor
        return {"optimizer": optimizer, "lr_scheduler": taken}

    model.configure_optimizers = MethodType(configure_optimizers, model)  # type: ignore[method-assign]


def make_optimizer(
    model: torch.nn.Module, settings: Optim, world_size: int, where: str = "optim"
) -> torch.optim.Optimizer:
    """Make the optimiser of a model's trainable parameters.

    With `scale_lr` the learning rates are multiplied by the world size (linear
    scaling rule, Goyal et al. 2017, arXiv:1706.02677).

    Args:
        where: Start of messages.

    Raises:
        ConfigError: The class rejects its arguments, or a pattern of `groups` matches no parameter.
    """
    scale = world_size if settings.scale_lr else 1
    groups = parameter_groups(model, settings.groups, scale, where)
    named = _named("optim", settings.name, settings.args)
    more = {"lr": settings.lr * scale, "weight_decay": settings.weight_decay}
    if settings.name == "sgd":
        more["momentum"] = settings.momentum
    elif settings.name not in SHIPPED_OPTIMISERS:
        more = _accepted(more, named, where)
    # torch makes one group of a plain list, as of versions without groups
    parameters = groups if settings.groups else groups[0]["params"]
    optimizer = make_object(named, where, first=[parameters], more=more, shipped=SHIPPED_OPTIMISERS)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"{where}: {named.shown} gives {type(optimizer).__name__}, expected a torch.optim.Optimizer; name a class "
            "that is derived from it"
        )
    for place, group in enumerate(settings.groups):
        for key in group.keys() - {MATCH, *optimizer.defaults}:
            hint = did_you_mean(key, optimizer.defaults, otherwise="name one of these")
            raise ConfigError(
                f"{where}: optim.groups.{place}.{key} is not an option of {type(optimizer).__name__}, which has "
                f"{', '.join(optimizer.defaults)}; {hint}"
            )
    return optimizer


def _named(key: str, path: str, args: Mapping[str, Any]) -> NamedObject:
    arguments = {name: read_value(item, f"{key}.args.{name}") for name, item in args.items()}
    return NamedObject(
        path=path, arguments=arguments, key=key, path_key=f"{key}.name", key_of_arguments=f"{key}.args"
    )  # fmt: skip


def _accepted(passed: Mapping[str, float], named: NamedObject, where: str) -> dict[str, float]:
    """Return the settings that an optimiser of another library has; reject the others if they are set."""
    known, has_kwargs = parameters_of(import_class(named.path, f"{where}: optim.name"))
    found = {}
    for key, value in passed.items():
        is_set = value != getattr(Optim(), key)
        if key in known or (has_kwargs and (is_set or key == "lr")):
            found[key] = value
        elif is_set:
            raise ConfigError(
                f"{where}: optim.{key}={value}, but {named.path} takes {', '.join(known)}, and no {key}; leave "
                f"optim.{key} at its default"
            )
    return found


def lr_factor(
    step: int, *, name: str, warmup_steps: int, total_steps: int, decay_steps: int = 0, decay: str = "linear"
) -> float:  # fmt: skip
    """Return the learning rate factor at a step: linear warm-up, then the named schedule.

    `wsd` (warm-up, stable, decay) is from Hu et al. 2024 (MiniCPM, arXiv:2404.06395), and its decay by
    one minus the square root from Hägele et al. 2024 (arXiv:2405.18392).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if name == "wsd":
        done = min(1.0, max(0.0, 1 - (total_steps - step) / decay_steps))
        match decay:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "sqrt":
                return 1 - math.sqrt(done)
            case _:
                return 1 - done
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
    optimizer: torch.optim.Optimizer, settings: Schedule, total_steps: int, *, num_epochs: int = 0,
    where: str = "schedule",
) -> torch.optim.lr_scheduler.LRScheduler:  # fmt: skip
    """Make the learning rate schedule over `total_steps` optimiser steps, behind which the rate stays.

    Args:
        num_epochs: Epochs of the schedule, the `total_steps` of one that steps after each epoch.
        where: Start of messages.

    Raises:
        ConfigError: The class rejects its arguments, or needs other values of `monitor` and `interval`.
    """
    if problem := too_short(settings, total_steps):
        raise ConfigError(f"{where}: {problem}")
    if settings.name in SHIPPED_SCHEDULES:
        return LambdaLR(
            optimizer,
            lambda step: lr_factor(
                step,
                name=settings.name,
                warmup_steps=settings.warmup_steps,
                total_steps=total_steps,
                decay_steps=settings.decay_steps,
                decay=settings.decay,
            ),
        )
    named = _named("schedule", settings.name, settings.args)
    more, (known, _) = {}, parameters_of(import_class(named.path, f"{where}: schedule.name"))
    if "total_steps" in known and "epochs" not in settings.args:  # of which OneCycleLR makes it
        more["total_steps"] = total_steps if settings.interval == "step" else num_epochs
    has_end = settings.epochs is not None or settings.steps is not None
    if has_end and not {*more} - {*settings.args}:
        raise ConfigError(
            f"{where}: schedule.{'steps' if settings.epochs is None else 'epochs'} is given, but {named.path} takes no "
            "total_steps from it; leave it out, or set the length in schedule.args"
        )
    schedule = make_object(named, where, first=[optimizer], more=more)
    if not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(
            f"{where}: {named.shown} gives {type(schedule).__name__}, expected a torch.optim.lr_scheduler.LRScheduler; "
            "name a class that is derived from it"
        )
    is_plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if is_plateau and (settings.monitor is None or settings.interval != "epoch"):
        raise ConfigError(
            f"{where}: {named.shown} watches a metric of each validation; set schedule.interval to epoch, and "
            "schedule.monitor to a logged metric such as val_loss"
        )
    if settings.monitor is not None and not is_plateau:
        raise ConfigError(
            f"{where}: schedule.monitor={settings.monitor}, but {named.path} watches no metric; leave it out"
        )
    return schedule


def _hold(model: pl.LightningModule, last: int) -> None:
    """Let the schedule take no step behind its last one, where classes such as OneCycleLR raise an error."""
    take_step = model.lr_scheduler_step

    def lr_scheduler_step(self: pl.LightningModule, scheduler: Any, metric: Any) -> None:
        if scheduler.last_epoch < last:
            take_step(scheduler, metric)

    # a method of the schedule would be in its state
    model.lr_scheduler_step = MethodType(lr_scheduler_step, model)  # type: ignore[method-assign]
