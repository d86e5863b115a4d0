"""Where the schedule of a run ends, and up to which step two schedules are equal."""

from collections.abc import Callable

from msgspec import structs

from shardline.config.settings import Plain
from shardline.config.settings.optim_settings import Schedule
from shardline.config.settings.run_settings import RunSettings

StepsOf = Callable[[int], int]  # optimiser steps of the first epochs

_TORCH = "torch.optim.lr_scheduler"
_OF_LENGTH = ("total_steps", "epochs")  # arguments that replace the length of the training


def length(settings: RunSettings, steps_of: StepsOf) -> int:
    """Return the optimiser steps of a training that nothing ends early.

    Args:
        steps_of: Function that returns the optimiser steps of the first epochs.
    """
    # a training that does not reach `trainer.max_steps` is an error
    trainer = settings.trainer
    return trainer.max_steps if trainer.max_steps > 0 else steps_of(trainer.max_epochs)


def horizon(settings: RunSettings, steps_of: StepsOf) -> int:
    """Return the optimiser step at which the schedule of a run ends; see `length`."""
    schedule = settings.schedule
    if schedule.steps is not None:
        return schedule.steps
    return length(settings, steps_of) if schedule.epochs is None else steps_of(schedule.epochs)


def is_of_training(schedule: Plain, trainer: Plain) -> bool:
    """Return whether the horizon of a schedule is the length of the training, as without one.

    Args:
        schedule, trainer: Resolved settings of these names.
    """
    if schedule.get("steps") is not None:
        return bool(schedule["steps"] == trainer["max_steps"])
    return trainer["max_steps"] < 0 and bool(schedule.get("epochs") == trainer["max_epochs"])


def ends_early(settings: RunSettings) -> str:
    """Return a sentence if the schedule ends before the training, as far as the settings show; else nothing."""
    schedule, trainer = settings.schedule, settings.trainer
    ends = (
        ("schedule.steps", schedule.steps, "trainer.max_steps", trainer.max_steps),
        ("schedule.epochs", schedule.epochs, "trainer.max_epochs", trainer.max_epochs),
    )
    for key, value, of_training, most in ends:
        if (
            value is not None
            and value < most
            and (key == "schedule.steps" or trainer.max_steps < 0)
        ):
            at = "at zero" if schedule.name in ("linear", "cosine", "wsd") else "where it is then"
            return (
                f"{key}={value} is less than {of_training}={most}, so the learning rate stays {at} for the rest of "
                "the training"
            )
    return ""


def too_short(schedule: Schedule, steps: int) -> str:
    """Return the problem of a schedule `wsd` whose phases do not fit into its steps; else nothing."""
    if schedule.name != "wsd" or schedule.warmup_steps + schedule.decay_steps <= steps:
        return ""
    return (
        f"schedule.warmup_steps={schedule.warmup_steps} and schedule.decay_steps={schedule.decay_steps} are more than "
        f"the {steps} steps of the schedule; shorten one, or raise schedule.steps or the length of the training"
    )


def fitting(schedule: Schedule, least: int) -> Schedule:
    """Return a schedule that fits a training of another length, whose first steps are tried.

    Args:
        least: Steps that the schedule has at least.
    """
    if schedule.name == "wsd":
        steps = least + schedule.warmup_steps + schedule.decay_steps
        return structs.replace(schedule, epochs=None, steps=steps)
    longer = {
        key: max(value, least)
        for key in ("epochs", "steps")
        if (value := getattr(schedule, key)) is not None
    }
    return structs.replace(schedule, **longer)


def same_until(
    a: RunSettings, b: RunSettings, steps_of: StepsOf, *, takes_length: bool = True
) -> int:
    """Return a step up to which the learning rates of two runs are equal, and the states of their schedules.

    Args:
        a, b: Settings of runs that differ in nothing but length and schedule.
        steps_of: Function that returns the optimiser steps of the first epochs, of either run.
        takes_length: Whether a class of the user takes `total_steps`. Those of torch are known.

    Returns:
        A number of optimiser steps, at most those of the shorter run; 0 if the first step may differ.
    """
    shared = min(length(a, steps_of), length(b, steps_of))
    one, other = a.schedule, b.schedule
    ends = horizon(a, steps_of), horizon(b, steps_of)
    if {one.name, other.name} == {"constant", "wsd"} or one.name == other.name == "wsd":
        if one.warmup_steps != other.warmup_steps:
            return 0
        phases = [
            (end, of.decay_steps, of.decay) for of, end in zip((one, other), ends, strict=True)
        ]
        if one.name == other.name and phases[0] == phases[1]:
            return shared
        flat = (
            e - of.decay_steps for of, e in zip((one, other), ends, strict=True) if of.name == "wsd"
        )
        return max(0, min(shared, *flat))
    if structs.replace(one, epochs=None, steps=None) != structs.replace(
        other, epochs=None, steps=None
    ):
        return 0
    if one.name == "constant" or not _takes_length(one, takes_length=takes_length):
        return shared
    if one.interval == "epoch" and any(_epochs(of) < 0 for of in (a, b)):
        return 0
    if ends[0] != ends[1]:
        return 0
    # a class that would step once more at the end of the training stops before it, where the training goes on
    is_held = one.name not in ("linear", "cosine") and ends[0] == shared
    return shared - 1 if is_held and length(a, steps_of) != length(b, steps_of) else shared


def _takes_length(schedule: Schedule, *, takes_length: bool) -> bool:
    if any(key in schedule.args for key in _OF_LENGTH):
        return False
    module, _, name = schedule.name.replace(":", ".").rpartition(".")
    return name == "OneCycleLR" if module == _TORCH else takes_length


def _epochs(settings: RunSettings) -> int:
    """Return the epochs of the schedule; -1 if only the data decides."""
    if settings.schedule.epochs is not None:
        return settings.schedule.epochs
    return -1 if settings.trainer.max_steps > 0 else settings.trainer.max_epochs
