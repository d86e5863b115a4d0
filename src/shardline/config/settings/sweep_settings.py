"""Settings of sweeps: `sweeps` of the config."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from shardline.config.settings import Count, Natural, Settings, Text


class Dimension(
    Settings, frozen=True, kw_only=True, rename={"integer": "int", "log_int": "int_log"}
):
    """The values of one setting: exactly one of the keys except `when`. A list is short for `choices`."""

    uniform: list[float] | UnsetType = UNSET
    """Lowest and highest number, drawn uniformly."""
    log: list[float] | UnsetType = UNSET
    """Lowest and highest number above 0, drawn uniformly on a logarithmic scale."""
    integer: list[int] | UnsetType = UNSET
    """Lowest and highest whole number, both included."""
    log_int: list[int] | UnsetType = UNSET
    """Lowest and highest whole number, both included, on a logarithmic scale."""
    choices: Annotated[list[Any], Meta(min_length=1)] | UnsetType = UNSET
    """Values to choose from."""
    when: dict[str, Any] = {}
    """Settings of the same space with the value, or a list of values, for which this setting is varied:
    `{optim.name: sgd}`. Otherwise the setting keeps the value of the base run."""


class Objective(Settings, frozen=True, kw_only=True):
    """The validation metric that a sweep improves."""

    metric: Text = "val_loss"
    """Metric of the validation split. The best value over all validations of a training counts."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher values are better."""


class SweepSettings(Settings, frozen=True, kw_only=True):
    """An entry of `sweeps`."""

    base: Text
    """Name of the run of the table whose settings are varied."""
    space: Annotated[dict[Text, list[Any] | Dimension], Meta(min_length=1)]
    """Dotted settings with their values: a list to choose from, or a range such as `{log: [1e-4, 1e-1]}`."""
    sampler: Text = "tpe"
    """What proposes settings: `grid`, `random`, `sobol`, `tpe`, `cmaes`, `gp`, or the import path of a sampler of
    Optuna that accepts `seed`. See `docs/how-to/sweep.md` for the packages of each."""
    trials: Count | UnsetType = UNSET
    """Number of trials. More trials extend a sweep. Default with `grid`: all combinations."""
    parallel: Count | dict[str, Count] = 1
    """Trials that may train at the same time: a proposal depends on the results of all trials that far before it.
    `{0: 8, 60: 16}` changes the number from trial 60 on."""
    seeds: Count = 1
    """Trainings per trial, with consecutive values of `seed`. The trial's value is their mean."""
    seed: Natural = 0
    """Seed of the sampler."""
    objective: Objective = field(default_factory=Objective)
    constraints: Text | UnsetType = UNSET
    """Import path of a Python function that returns whether settings are allowed. Its argument is a table of all
    varied settings by dotted key."""
