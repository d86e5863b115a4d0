"""Samplers of a sweep: the next row of values, as a function of earlier rows and values."""

import hashlib
import math
from collections.abc import Sequence
from copy import copy
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any

from msgspec import structs

from shardline.config.spaces import Row, Space, bounds_of, kind_of
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError
from shardline.records.sweeps import Seen

_INSTALL = "run `pip install 'shardline[sweeps]'`"
_SIGMA = 1 / 6  # of the unit cube, as CmaEsSampler of Optuna begins
# Samplers that are not functions of settings and values of the trials before.
_STATEFUL = {
    "CmaEsSampler": "set sampler: cmaes",
    "QMCSampler": "set sampler: sobol",
    "NSGAIISampler": "set sampler: tpe",
    "NSGAIIISampler": "set sampler: tpe",
}


def draw(
    plan: SweepPlan, trial: int, told: Sequence[Seen], in_flight: Sequence[Row], attempt: int = 0
) -> Row:
    """Return the row that a sampler proposes for a trial.

    The result depends on the arguments only: a new sampler is made for each trial, with a seed of its own.

    Args:
        told: Earlier trials whose results are known, in order.
        in_flight: Rows of the trials after them, whose results are not known.
        attempt: Number of earlier rows that constraints rejected for this trial.

    Raises:
        ConfigError: The package of the sampler is missing.
    """
    sampler, seed = plan.settings.sampler, seed_of(plan.settings.seed, trial, attempt)
    if plan.rungs and sampler != "tpe":
        told = [_at_first_rung(one) for one in told]
    if sampler == "grid":
        return next(row for number, row in enumerate(plan.space.grid()) if number == trial)
    if sampler == "sobol":
        return _sobol(plan.space, plan.settings.seed, trial)
    if sampler == "cmaes":
        return _cmaes(plan, seed, told)
    return _optuna(plan, seed, told, in_flight)


def _at_first_rung(one: Seen) -> Seen:
    """Return a trial with the value that all trials have after the same number of epochs."""
    return structs.replace(one, value=one.values[0]) if one.values else one


def num_draws(plan: SweepPlan) -> int:
    """Return how many rows may be drawn for a trial until the constraints allow one."""
    return 1 if plan.settings.sampler in ("grid", "sobol") else 100


def seed_of(seed: int, trial: int, attempt: int = 0) -> int:
    """Return the seed of the sampler for one trial, a hash of the sweep's seed and the trial's number."""
    text = f"{seed}/{trial}" + (f"/{attempt}" if attempt else "")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def worst_of(told: Sequence[Seen], mode: str) -> float | None:
    """Return the worst value of earlier trials, which failed trials count as; None if none has a value."""
    values = [one.value for one in told if one.value is not None]
    return (max if mode == "min" else min)(values) if values else None


# --- without Optuna -----------------------------------------------------------------------------


def _sobol(space: Space, seed: int, trial: int) -> Row:
    """Return the point of a scrambled Sobol sequence with the trial's number."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(space.keys), scramble=True, rng=seed)
    if trial:
        sequence.fast_forward(trial)
    (point,) = sequence.random(1)
    return _row_at(space, point)


def _row_at(space: Space, point: Sequence[float]) -> Row:
    place = dict(zip(space.keys, map(float, point), strict=True))

    def value_of(key: str, dimension: Any) -> int | float:
        if key in space.choices:
            number = len(space.choices[key])
            return min(int(place[key] * number), number - 1)
        low, high = bounds_of(dimension)
        return _scaled(kind_of(dimension), low, high, place[key])

    return space.draw(value_of)


def _scaled(kind: str, low: float, high: float, share: float) -> int | float:
    """Return the number at a share of a range, 0 to 1."""
    if kind in ("int", "int_log"):  # each whole number has an interval of its own
        low, high = low - 0.5, high + 0.5
    if "log" in kind:
        found = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        found = low + share * (high - low)
    if kind in ("int", "int_log"):
        return min(max(round(found), round(low + 0.5)), round(high - 0.5))
    return min(max(found, low), high)


def _share(kind: str, low: float, high: float, value: float) -> float:
    """Return the share of a range at which a number is; the inverse of `_scaled`."""
    if kind in ("int", "int_log"):
        low, high = low - 0.5, high + 0.5
    if "log" in kind:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def _cmaes(plan: SweepPlan, seed: int, told: Sequence[Seen]) -> Row:
    """Replay the generations whose results are known, and draw from the distribution after them."""
    numpy, cmaes = import_module("numpy"), _package("cmaes", "cmaes")
    space, ways = plan.space, [*plan.space.dimensions.values()]
    ends = [(kind_of(one), *bounds_of(one)) for one in ways]
    bounds = numpy.array([[0.0, 1.0]] * len(ends))
    state = cmaes.CMA(mean=numpy.full(len(ends), 0.5), sigma=_SIGMA, bounds=bounds, seed=0)
    sign, worst = (
        (1 if plan.settings.objective.mode == "min" else -1),
        worst_of(told, plan.settings.objective.mode),
    )
    size = state.population_size
    for first in range(0, len(told) - size + 1, size):
        generation = told[first : first + size]
        if worst is None:
            break
        state.tell([
            (
                numpy.array([_share(*end, float(value or 0)) for end, value in zip(ends, one.row, strict=True)]),
                sign * (worst if one.value is None else one.value),
            )
            for one in generation
        ])  # fmt: skip
    state.reseed_rng(seed)
    return _row_at(space, state.ask())


# --- with Optuna --------------------------------------------------------------------------------


def _optuna(plan: SweepPlan, seed: int, told: Sequence[Seen], in_flight: Sequence[Row]) -> Row:
    optuna = _package("optuna", plan.settings.sampler)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    mode = plan.settings.objective.mode
    study = optuna.create_study(
        direction="minimize" if mode == "min" else "maximize",
        sampler=_sampler(optuna, plan.settings.sampler, seed),
    )
    distributions = {key: distribution(optuna, plan.space, key) for key in plan.space.keys}
    worst = worst_of(told, mode)
    made, now = _quickly_added(optuna.trial.FrozenTrial), datetime.now()
    for row, value, is_known, values in [
        *((one.row, one.value, True, one.values) for one in told),
        *((row, None, False, ()) for row in in_flight),
    ]:
        params = {
            key: one for key, one in zip(plan.space.keys, row, strict=True) if one is not None
        }
        state = optuna.trial.TrialState.COMPLETE if is_known else optuna.trial.TrialState.RUNNING
        if is_known and value is None and plan.settings.sampler == "tpe":
            state = optuna.trial.TrialState.PRUNED
        elif is_known and value is None:
            value = worst
            state = state if value is not None else optuna.trial.TrialState.PRUNED
        shorter = {}
        if (
            plan.settings.sampler == "tpe"
            and value is not None
            and 0 < len(values) < len(plan.rungs)
        ):
            # the sampler ranks such trials behind whole ones, those of longer rungs first
            state, shorter = (
                optuna.trial.TrialState.PRUNED,
                dict(zip(plan.rungs, values, strict=False)),
            )
            value = None
        study.add_trial(
            made(
                number=-1, trial_id=-1, state=state, value=value, params=params, user_attrs={}, system_attrs={},
                distributions={key: distributions[key] for key in params}, intermediate_values=shorter,
                datetime_start=now, datetime_complete=now if state.is_finished() else None,
            )
        )  # fmt: skip
    trial = study.ask()
    return plan.space.draw(lambda key, _: _suggested(trial, plan.space, key))


@cache
def _quickly_added(kind: type) -> type:
    """Return a class of trials that a study of Optuna adds without a check, and copies flat.

    Deep copies took a third of a proposal's time, and checks a tenth. Optuna has proposed these values itself.
    """

    def copied(self: Any, _: Any) -> Any:
        return (
            self if self.number < 0 else copy(self)
        )  # below 0 until it is added, and then used by the study alone

    return type(kind.__name__, (kind,), {"__deepcopy__": copied, "_validate": lambda self: None})


def _suggested(trial: Any, space: Space, key: str) -> int | float:
    if key in space.choices:
        return int(trial.suggest_categorical(key, tuple(range(len(space.choices[key])))))
    kind = kind_of(space.dimensions[key])
    low, high = bounds_of(space.dimensions[key])
    if kind in ("int", "int_log"):
        return int(trial.suggest_int(key, low, high, log="log" in kind))
    return float(trial.suggest_float(key, low, high, log="log" in kind))


def _sampler(optuna: Any, name: str, seed: int) -> Any:
    samplers = optuna.samplers
    known = {"random": "RandomSampler", "tpe": "TPESampler", "gp": "GPSampler"}
    if name in known:
        return getattr(samplers, known[name])(seed=seed)
    module, _, attribute = name.partition(":")
    try:
        made = getattr(import_module(module), attribute)(seed=seed)
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"sampler={name} cannot be made with seed={seed}: {error}; name a class or function that accepts seed and "
            "returns a sampler of Optuna"
        ) from None
    if not isinstance(made, samplers.BaseSampler):
        raise ConfigError(
            f"sampler={name} made a {type(made).__name__}, expected a sampler of Optuna; name a class or function "
            "that accepts seed and returns one"
        )
    for stateful, remedy in _STATEFUL.items():
        if isinstance(made, getattr(samplers, stateful)):
            raise ConfigError(
                f"sampler={name} is a {stateful}, which keeps its state in a study of Optuna, but each trial has a "
                f"study of its own; {remedy}"
            )
    return made


def distribution(optuna: Any, space: Space, key: str) -> Any:
    """Return Optuna's distribution of a setting; choices are their places."""
    found = optuna.distributions
    if key in space.choices:
        return found.CategoricalDistribution(tuple(range(len(space.choices[key]))))
    kind = kind_of(space.dimensions[key])
    low, high = bounds_of(space.dimensions[key])
    made = found.IntDistribution if kind in ("int", "int_log") else found.FloatDistribution
    return made(low, high, log="log" in kind)


def _package(name: str, sampler: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"sampler={sampler} needs the package {name}, which is not installed; {_INSTALL}"
        ) from None
