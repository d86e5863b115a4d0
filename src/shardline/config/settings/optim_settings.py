"""Settings of the optimiser and of the learning rate over time."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from shardline.config.settings import Count, Natural, NotNegative, Positive, Settings, Text

# a shipped name, or an import path with dots or a colon
_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*"
_OPTIMISERS = ("sgd", "adam", "adamw")
_SCHEDULES = ("constant", "linear", "cosine", "wsd")
OptimName = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(_OPTIMISERS)}|{_PATH})$",
        extra={"choices": _OPTIMISERS, "words": "an import path such as torch.optim:RAdam"},
    ),
]
ScheduleName = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(_SCHEDULES)}|{_PATH})$",
        extra={"choices": _SCHEDULES, "words": "an import path such as mypkg.optim:WarmUp"},
    ),
]
Arguments = Annotated[dict[str, Any], Meta(extra={"legacy_value": {}})]
_Horizon = Annotated[Count | None, Meta(extra={"legacy_value": None})]


class Optim(Settings, frozen=True, kw_only=True):
    """The optimiser, for models without a `configure_optimizers` of their own."""

    name: OptimName = "adam"
    """Optimiser, or the import path of a class (`torch.optim:RAdam`, `mypkg.optim:Lion`). Its constructor gets the
    parameters, `optim.args`, and of `lr` and `weight_decay` those that it has."""
    lr: Positive = 0.001
    """Learning rate, before any scaling."""
    weight_decay: NotNegative = 0.0
    """L2 penalty (decoupled for adamw)."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum of sgd; the other optimisers ignore it."""
    scale_lr: bool = False
    """Multiply `optim.lr` by the world size (linear scaling rule, Goyal et al. 2017)."""
    args: Arguments = {}
    """Further arguments of the optimiser, such as `optim.args.betas`."""
    groups: Annotated[list[dict[str, Any]], Meta(extra={"legacy_value": []})] = []
    """Options of some parameters: `[{match: "backbone.*", lr: 1e-5}, {match: "*.bias", weight_decay: 0}]`. If several
    patterns match a parameter, all their options apply, and the last of each name. A pattern without a match is an
    error."""


class Schedule(Settings, frozen=True, kw_only=True):
    """The learning rate over time."""

    name: ScheduleName = "constant"
    """Schedule after the warm-up. `linear` and `cosine` fall to zero, `wsd` stays and then falls to zero. Or the import
    path of a class (`torch.optim.lr_scheduler:StepLR`). Its constructor gets the optimiser, `schedule.args` and, if it
    has this argument, `total_steps`."""
    epochs: _Horizon = None
    """Epochs after which the schedule ends. Default: those of the training. Behind its end, the rate stays."""
    steps: _Horizon = None
    """Optimiser steps after which the schedule ends, instead of `schedule.epochs`."""
    warmup_steps: Natural = 0
    """Number of optimiser steps of linear warm-up."""
    decay_steps: Annotated[Natural, Meta(extra={"legacy_value": 0})] = 0
    """Number of optimiser steps in which `wsd` falls to zero, the last of the schedule."""
    decay: Annotated[
        Literal["linear", "cosine", "sqrt"], Meta(extra={"legacy_value": "linear"})
    ] = "linear"
    """How `wsd` falls: `linear`, `cosine`, or `sqrt`: one minus the root of the part that is done."""
    args: Arguments = {}
    """Arguments of a schedule that is named by import path, such as `schedule.args.step_size`."""
    interval: Annotated[Literal["step", "epoch"], Meta(extra={"legacy_value": "step"})] = "step"
    """Whether a schedule that is named by import path steps after each optimiser step or each epoch."""
    monitor: Annotated[Text | None, Meta(extra={"legacy_value": None})] = None
    """Logged metric that `ReduceLROnPlateau` watches."""
