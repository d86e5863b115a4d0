"""The trials of a study: the next proposal, what was sealed, and the best."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.config.load import load_variant
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.rungs import AnySlot
from shardline.config.spaces import Row, kind_of
from shardline.config.stops import at_rung
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.records.base import Record, decode
from shardline.records.sweeps import Proposal, ReportedStudy, Seen, StudyResult, Trial, TrialResult
from shardline.results.sweeps.samplers import draw, num_draws

REMEDY = "delete it and run `snakemake` again, which writes it again with the same content"


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


def seen_of(
    plan: SweepPlan, row: Row, known: Sequence[TrialResult], before: Sequence[float] = ()
) -> Seen:
    """Return what a later proposal knows of a trial.

    Args:
        known: Results of its trainings at one rung.
        before: Its values at shorter rungs.
    """
    value = value_of(known)
    values = [*before, *known[0].values, *([] if value is None else [value])]
    return Seen(row=row, value=value, values=values if plan.rungs else [])


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


def run_of_trial(
    project: Project, plan: SweepPlan, proposal: Proposal, repeat: int, rung: int | None = None
) -> RunPlan:
    """Return the run of one training of a trial.

    Args:
        rung: Number of the rung; None for the proposal's.

    Raises:
        ConfigError: The settings exclude each other.
    """
    base = project.runs[plan.base]
    rung = proposal.rung if rung is None else rung
    changed = dict(at_rung(project, base, proposal.settings, plan.rungs, rung))
    if plan.settings.seeds > 1:
        changed["seed"] = base.settings.seed + repeat
    name = name_of_training(plan, proposal.trial, repeat, rung)
    return load_variant(
        project, base, changed, name=name, where=f"sweeps.{plan.name} trial {proposal.trial}"
    )


def name_of_training(plan: SweepPlan, trial: int, repeat: int, rung: int) -> str:
    """Return the name of the run of a trial's training at a rung."""
    name = f"{plan.name}-{trial}" + (f".{repeat}" if plan.settings.seeds > 1 else "")
    return name + (f"-e{plan.rungs[rung]}" if plan.rungs else "")


def value_of(results: Sequence[TrialResult]) -> float | None:
    """Return the mean value over the trainings of a trial; None if one has no value."""
    values = [one.value for one in results if one.value is not None]
    return fmean(values) if len(values) == len(results) else None


def best_of(trials: Sequence[Trial], mode: str) -> Trial | None:
    """Return the trial with the best value at the longest rung, the first of equals; None if no trial has a value."""
    known = [one for one in trials if one.value is not None]
    sign = 1 if mode == "min" else -1
    return min(
        known, key=lambda one: (-one.rung, sign * (one.value or 0.0), one.trial), default=None
    )


def read_proposal(path: Path) -> Proposal:
    """Read a sealed proposal.

    Raises:
        DataError: The file is missing or was changed.
    """
    found = _read(path, Proposal)
    assert isinstance(found, Proposal)
    return found


def read_result(path: Path) -> TrialResult:
    """Read a sealed result; see `read_proposal`."""
    found = _read(path, TrialResult)
    assert isinstance(found, TrialResult)
    return found


def read_study(path: Path) -> StudyResult:
    """Read a finished study; see `read_proposal`."""
    found = _read(path, StudyResult)
    assert isinstance(found, StudyResult)
    return found


def _read(path: Path, kind: type[Record]) -> Record:
    document = read_object(path, remedy=REMEDY)
    if problem := check_seal(path, document):
        raise DataError(f"{problem}; {REMEDY}")
    return decode(document, kind, where=path, remedy=REMEDY)


def read_trials(plan: SweepPlan, layout: ResultsLayout) -> list[Trial]:
    """Return the trials of a study that have ended, in order.

    Raises:
        DataError: A file was changed.
    """
    if plan.summary(layout).exists():
        return read_study(plan.summary(layout)).trials
    return trials_so_far(plan, layout)


def trials_so_far(plan: SweepPlan, layout: ResultsLayout) -> list[Trial]:
    """Return the trials with a result, in order, from their results and the last proposal."""
    found: dict[int, list[list[TrialResult]]] = {}
    for slot in plan.slots:  # all promotions to a rung follow those to the rung before
        paths = [plan.proposal(layout, slot), *plan.results(layout, slot)]
        if all(path.exists() for path in paths):
            results = read_results(plan, layout, slot)
            found.setdefault(results[0].trial, []).append(results)
    rows = rows_so_far(plan, layout)
    return [trial_of(plan, rows[number], rungs) for number, rungs in sorted(found.items())]


def rows_so_far(plan: SweepPlan, layout: ResultsLayout) -> list[Row]:
    """Return the rows of the trials that are proposed.

    All are in the last proposal. To read each proposal would take seconds: those of 1,000 trials have 58 MB.

    Raises:
        DataError: The last proposal was changed.
    """
    numbers = range(plan.trials - 1, -1, -1)
    paths = (plan.proposal(layout, number) for number in numbers)
    last = next((path for path in paths if path.exists()), None)
    if last is None:
        return []
    rows = rows_of(proposal := read_proposal(last))
    if len(rows) != proposal.trial + 1:
        raise DataError(f"{last} has {len(rows)} rows, expected {proposal.trial + 1}; {REMEDY}")
    return rows


def rows_of(proposal: Proposal) -> list[Row]:
    """Return the rows of all trials up to that of a proposal, which is no promotion."""
    return [*(one.row for one in proposal.told), *proposal.in_flight, proposal.row]


def study_so_far(plan: SweepPlan, layout: ResultsLayout) -> ReportedStudy:
    """Return a study for the report, with the trials that have ended; see `read_trials`."""
    path, mode = plan.summary(layout), plan.settings.objective.mode
    summary = read_study(path) if path.exists() else None
    trials = summary.trials if summary else read_trials(plan, layout)
    best = best_of(trials, mode)
    return ReportedStudy(
        name=plan.name,
        study=plan.id,
        sampler=plan.settings.sampler,
        planned=plan.trials,
        kinds={key: kind_of(one) for key, one in plan.space.dimensions.items()},
        metric=plan.settings.objective.metric,
        mode=mode,
        keys=[*plan.space.keys],
        trials=trials,
        best=best.trial if best else None,
        importance=summary.importance if summary else {},
        rungs=plan.rungs,
        action=summary.action.id if summary and summary.action else "",
    )


def read_results(plan: SweepPlan, layout: ResultsLayout, slot: AnySlot) -> list[TrialResult]:
    """Return the results of a slot, one for each training."""
    return [read_result(path) for path in plan.results(layout, slot)]


def trial_of(plan: SweepPlan, row: Row, rungs: Sequence[Sequence[TrialResult]]) -> Trial:
    """Return a trial, from its results at each rung."""
    results = [one for rung in rungs for one in rung]
    costs = [one for one in results if not one.linked]
    seconds = [one.seconds for one in costs if one.seconds is not None]
    steps = [one.steps for one in costs if one.steps is not None]
    last = rungs[-1]
    values = [one for rung in rungs for one in seen_of(plan, row, rung).values]
    return Trial(
        trial=last[0].trial,
        settings=plan.space.settings_of(row),
        row=row,
        runs=[one.run for one in last if one.run],
        value=value_of(last),
        seconds=sum(seconds) if seconds else None,
        failure=next((one.failure for one in last if one.failure), ""),
        linked=all(one.linked for one in results),
        rung=last[0].rung,
        values=values,
        steps=sum(steps) if plan.rungs and steps else None,
    )


def runs_of_studies(project: Project) -> dict[str, str]:
    """Return the runs of all proposals of the config's sweeps: the name of the sweep by id of the run."""
    found: dict[str, str] = {}
    for plan in project.sweeps.values():
        for slot in plan.slots:
            if plan.proposal(project.layout, slot).exists():
                found |= dict.fromkeys(_runs_of_slot(plan, project.layout, slot), plan.name)
    return found


def _runs_of_slot(plan: SweepPlan, layout: ResultsLayout, slot: AnySlot) -> list[str]:
    """Return the runs of a proposal, from its results if they contain all of them, which are quicker to read."""
    if not plan.median and all(path.exists() for path in plan.results(layout, slot)):
        return [one.run for one in read_results(plan, layout, slot) if one.run]
    return read_proposal(plan.proposal(layout, slot)).runs


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
