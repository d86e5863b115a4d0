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


class RungSteps(Settings, frozen=True, kw_only=True):
    """Rungs in optimiser steps, for trainings of less than an epoch."""

    steps: Annotated[list[Count], Meta(min_length=2)]
    """Steps of each rung. The last is the length of a whole training."""


class HalvingSettings(Settings, frozen=True, kw_only=True):
    """Successive halving: of the trials of a rung, the best train on to the next one."""

    rungs: Annotated[list[Count], Meta(min_length=2)] | RungSteps
    """Epochs of each rung, or a table `{steps: [1000, 3000, 9000]}`. The last is the length of a whole training."""
    keep: Annotated[int, Meta(ge=2)] = 3
    """One of so many trials of a rung trains on."""


class MedianSettings(Settings, frozen=True, kw_only=True):
    """The median rule: a trial stops at a rung if its value is worse than the median of earlier trials."""

    rungs: Annotated[list[Count], Meta(min_length=2)] | RungSteps
    """Epochs at which trials are compared, or a table `{steps: [1000, 3000, 9000]}`. The last is the length of a whole
    training."""
    startup_trials: Natural = 5
    """Trials that must have a value at a rung before another one stops there."""
    warmup_rungs: Natural = 0
    """Number of first rungs at which no trial stops."""


class StopSettings(Settings, frozen=True, kw_only=True):
    """How weak trials stop early: exactly one of the keys."""

    halving: HalvingSettings | None = None
    """Trains the best trials of each rung on to the next."""
    median: MedianSettings | None = None
    """Stops trials that are worse than the median of earlier ones."""


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
    stop: StopSettings | None = None
    """Stops weak trials early: `{halving: {rungs: [1, 3, 9, 27], keep: 3}}` or `{median: {rungs: [1, 3, 9, 27]}}`."""
    constraints: Text | UnsetType = UNSET
    """Import path of a Python function that returns whether settings are allowed. Its argument is a table of all
    varied settings by dotted key."""
