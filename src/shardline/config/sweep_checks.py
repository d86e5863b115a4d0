"""What is wrong with a sweep by itself, before its base run is looked at; each problem begins with the key."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from shardline.config.settings.sweep_settings import Dimension, SweepSettings
from shardline.config.spaces import Space, kind_of, problems_of_space
from shardline.config.stops import halving_of, median_of, problems_of_stop
from shardline.core.metric_names import guess_mode, split_of
from shardline.core.suggest import suggest

# Distributions whose versions decide the proposals of each sampler.
SAMPLERS: dict[str, tuple[str, ...]] = {
    "grid": (),
    "random": ("optuna", "numpy"),
    "sobol": ("numpy", "scipy"),
    "tpe": ("optuna", "numpy", "scipy"),
    "cmaes": ("cmaes", "numpy"),
    "gp": ("optuna", "numpy", "scipy", "torch"),
}
_MOST = 100_000


def problems_of_sweep(entry: SweepSettings) -> Iterator[str]:
    """Yield the problems of a sweep."""
    sampler, space = entry.sampler, entry.space
    of_space = [*problems_of_space(space)]
    yield from (f".space{problem}" for problem in of_space)
    if sampler not in SAMPLERS and ":" not in sampler:
        yield f".sampler={sampler} is no sampler, and no import path; {suggest(sampler, SAMPLERS)}"
    if entry.constraints is not UNSET and ":" not in entry.constraints:
        yield (
            f".constraints={entry.constraints} is no import path; name module and function, such as "
            f"mypkg.limits:{entry.constraints.rpartition('.')[2]}"
        )
    if entry.trials is UNSET and sampler != "grid":
        yield f".trials is missing; set the number of trials, which only sampler: grid can count ({sampler} cannot)"
    elif entry.trials is not UNSET and entry.trials > _MOST:
        yield f".trials={entry.trials}, expected at most {_MOST}; lower it"
    yield from _problems_of_parallel(entry.parallel)
    yield from problems_of_stop(entry)
    yield from _problems_of_objective(entry)
    if not of_space:
        yield from _problems_of_sampler(entry)


def problems_of_trials(entry: SweepSettings, trials: int) -> Iterator[str]:
    """Yield what the number of trials, which a grid may lower, does not allow."""
    halving = halving_of(entry)
    if halving and trials < halving.size:
        found = f".trials={trials}"
        remedy = "raise it, or drop a rung"
        if entry.sampler == "grid" and (entry.trials is UNSET or trials < entry.trials):
            found, remedy = (
                f".space is a grid of {trials} points and",
                "list more values, or drop a rung",
            )
        yield (
            f"{found} brings no trial to the last rung, which needs keep ** {len(halving.rungs) - 1} = "
            f"{halving.size}; {remedy}"
        )


def _problems_of_objective(entry: SweepSettings) -> Iterator[str]:
    metric, mode = entry.objective.metric, entry.objective.mode
    if split_of(metric) != "val":
        yield (
            f".objective.metric={metric} is not named as a metric of the validation split, which alone "
            "may choose; name one such as val_loss, or log it under such a name"
        )
    elif mode == "min" and guess_mode(metric) == "max":  # the default
        yield (
            f".objective.mode=min would search for the worst {metric}, of which higher values are better; set "
            "mode: max, or log the metric under another name"
        )


def _problems_of_sampler(entry: SweepSettings) -> Iterator[str]:
    sampler, space = entry.sampler, entry.space
    ranges = [key for key, one in _kinds(space) if one != "choices"]
    if sampler == "grid" and ranges:
        yield f".space.{ranges[0]} is a range, of which a grid has no points; list values, or set another sampler"
    choices = [key for key, one in _kinds(space) if one == "choices"]
    if sampler == "cmaes" and (choices or any(getattr(one, "when", {}) for one in space.values())):
        key = choices[0] if choices else "when"
        yield f".space.{key}: cmaes varies only ranges without conditions; write a range, or set sampler: tpe"
    if sampler == "grid" and not ranges:
        lengths = [
            len(one if isinstance(one, list) else one.choices or []) for one in space.values()
        ]
        points = math.prod(lengths)
        is_whole = entry.trials is UNSET or any(getattr(one, "when", {}) for one in space.values())
        if points > _MOST and is_whole:
            yield (
                f".space is a grid of {points:,} points, expected at most {_MOST:,}; list fewer values, or set "
                "sampler: random"
            )


def _kinds(space: Mapping[str, list[Any] | Dimension]) -> list[tuple[str, str]]:
    """Return the kind of values of each setting of a space."""
    return [
        (key, "choices" if isinstance(one, list) else kind_of(one)) for key, one in space.items()
    ]


def _problems_of_parallel(given: int | Mapping[str, int]) -> Iterator[str]:
    if isinstance(given, int):
        return
    for key in given:
        if not (key.isascii() and key.isdecimal()):
            yield f".parallel.{key} is not the number of a trial; write it as {{0: 8, 60: 16}}"
        elif key != str(int(key)) and str(int(key)) in given:
            yield f".parallel lists trial {int(key)} twice, as {int(key)} and {key}; drop one"
    if "0" not in given:
        yield ".parallel lists no number for trial 0; write it as {0: 8, 60: 16}"


def notes_on_sweep(entry: SweepSettings, trials: int) -> Iterator[str]:
    """Yield what is odd about the objective and the number of trials, though allowed; each begins with the key."""
    metric, mode = entry.objective.metric, entry.objective.mode
    if mode == "max" and guess_mode(metric) == "min":
        yield f".objective.mode=max searches for the highest {metric}; set mode: min if lower values are better"
    space = Space(entry.space)
    points = space.num_points if len(space.choices) == len(space.keys) else None
    if points is not None and entry.sampler == "grid":
        if entry.trials is not UNSET and entry.trials > points:
            yield f".trials={entry.trials}, but the grid has {points} points, so that there are {points} trials"
        elif trials < points:
            fixed = [
                key
                for key in space.keys
                if len({str(row[space.keys.index(key)]) for row in space.rows(trials)}) == 1
            ]
            also = f" {', '.join(fixed)} does not vary;" if fixed else ""
            yield (
                f".trials={trials} takes the first of the grid's {points} points;{also} leave trials out, or set "
                "sampler: random"
            )
    elif points is not None and trials > points:
        yield (
            f".trials={trials}, but the space has {points} points; trials with the settings of an earlier one cost "
            f"nothing and find nothing, so set trials to {points}, or sampler: grid"
        )
    parallel = entry.parallel if isinstance(entry.parallel, int) else max(entry.parallel.values())
    if (
        entry.sampler not in ("grid", "random", "sobol")
        and 1 < trials <= parallel
        and not entry.stop
    ):
        yield (
            f".parallel={parallel} proposes all {trials} trials before any has a result, so that sampler: "
            f"{entry.sampler} learns from none; lower parallel"
        )
    if (rule := median_of(entry)) and trials <= rule.startup_trials:
        yield (
            f".stop.median.startup_trials={rule.startup_trials}: none of the {trials} trials can stop early; lower it, "
            "or raise trials"
        )
