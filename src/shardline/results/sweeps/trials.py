"""The trials of a study: their runs, what was sealed, and the best."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from shardline.config.layout import ResultsLayout
from shardline.config.load import load_variant
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.rungs import AnySlot
from shardline.config.spaces import Row, kind_of
from shardline.config.stops import at_rung
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.records.base import Record, decode
from shardline.records.sweeps import Proposal, ReportedStudy, Seen, StudyResult, Trial, TrialResult

REMEDY = "delete it and run `snakemake` again, which writes it again with the same content"


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
    changed = dict(at_rung(project, base, proposal.settings, plan.settings, rung))
    if plan.settings.seeds > 1:
        changed["seed"] = base.settings.seed + repeat
    name = name_of_training(plan, proposal.trial, repeat, rung)
    return load_variant(
        project, base, changed, name=name, where=f"sweeps.{plan.name} trial {proposal.trial}"
    )


def name_of_training(plan: SweepPlan, trial: int, repeat: int, rung: int) -> str:
    """Return the name of the run of a trial's training at a rung."""
    name = f"{plan.name}-{trial}" + (f".{repeat}" if plan.settings.seeds > 1 else "")
    return name + (f"-{plan.unit[0]}{plan.rungs[rung]}" if plan.rungs else "")


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
        unit=plan.unit,
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
