"""The next proposal of a study: what it knows, and what the sampler draws under the constraints."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.config.spaces import Row
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError, DataError
from shardline.records.sweeps import Proposal, Seen, TrialResult
from shardline.results.sweeps.samplers import draw, num_draws
from shardline.results.sweeps.trials import read_proposal, seen_of


def next_proposal(
    plan: SweepPlan, trial: int, before: Proposal | None, results: Sequence[Sequence[TrialResult]]
) -> Proposal:
    """Return the proposal of a trial, without the runs.

    Args:
        before: Proposal of the trial before; None for the first trial.
        results: Results that this proposal is the first to know, see `SweepPlan.needs`, each a list of trainings.
    """
    told: list[Seen] = [*before.told] if before else []
    flying: list[Row] = [*before.in_flight, before.row] if before else []
    for known in results:
        number = known[0].trial
        if known[0].rung and not plan.median:  # a promotion, so the trial is known
            told[number] = seen_of(plan, told[number].row, known, told[number].values)
        else:
            told.append(seen_of(plan, flying.pop(0), known))
    if len(told) != plan.visible(trial) or len(told) + len(flying) != trial:
        raise DataError(
            f"the proposal of trial {trial - 1} of study {plan.name} knows {len(told) - len(results)} results, "
            f"expected {plan.visible(trial - 1)}: `parallel` was another number; restore it, or change the sweep's seed"
        )
    row, excluded = _allowed(plan, trial, told, flying)
    return Proposal(
        study=plan.id,
        trial=trial,
        settings=plan.space.settings_of(row),
        keys=[*plan.space.keys],
        row=row,
        excluded=excluded,
        told=told,
        in_flight=flying,
        parallel=schedule_until(plan, trial),
    )


def schedule_until(plan: SweepPlan, trial: int) -> dict[str, int]:
    """Return the numbers of parallel trials that apply up to a trial, without repetitions."""
    found: dict[str, int] = {}
    for first, number in sorted(plan.schedule.items()):
        if first <= trial and [*found.values()][-1:] != [number]:
            found[str(first)] = number
    return found


def _allowed(
    plan: SweepPlan, trial: int, told: Sequence[Seen], flying: Sequence[Row]
) -> tuple[Row, str]:
    """Return the first drawn row that the constraints allow, or the last one with the reason why none is."""
    path = plan.settings.constraints
    is_allowed = _constraint(str(path)) if path else None
    row: Row = []
    for attempt in range(num_draws(plan)):
        row = draw(plan, trial, told, flying, attempt)
        if is_allowed is None or is_allowed(plan.space.settings_of(row)):
            return row, ""
    return row, f"constraints: {path} does not allow these settings"


def _constraint(path: str) -> Any:
    module, _, name = path.partition(":")
    function = getattr(import_module(module), name)

    def is_allowed(settings: Mapping[str, Any]) -> bool:
        try:
            found = function(settings)
        except Exception as error:
            raise ConfigError(
                f"constraints={path} raised {type(error).__name__}: {error} for {dict(settings)}; a setting whose "
                "`when` does not apply is not in the table"
            ) from error
        if not isinstance(found, bool):
            raise ConfigError(
                f"constraints={path} returned {found!r} for {dict(settings)}, expected True or False; return whether "
                "the settings are allowed"
            )
        return found

    return is_allowed


def check_schedule(plan: SweepPlan, layout: ResultsLayout) -> None:
    """Reject other numbers of parallel trials than those that sealed proposals were made with.

    Raises:
        ConfigError: `parallel` changed for trials that are proposed already.
    """
    folder = layout.study(plan.id)
    numbers = [
        int(one.name)
        for one in (folder.iterdir() if folder.is_dir() else ())
        if one.name.isdecimal() and (one / "proposal.json").exists()
    ]
    if not numbers:
        return
    last = max(numbers)
    was, now = (
        read_proposal(folder / str(last) / "proposal.json").parallel,
        schedule_until(plan, last),
    )
    if was != now:
        more = {**{int(key): number for key, number in was.items()}, last + 1: plan.parallel(last)}
        raise ConfigError(
            f"sweeps.{plan.name}.parallel={plan.settings.parallel}, but trials 0 to {last} were proposed with {was}; "
            f"set parallel: {more} to change the number from the next trial on, or another seed for another study"
        )
