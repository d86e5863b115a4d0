"""Which trials train on: promotions of successive halving, and the median rule."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from shardline.checkpoints.kept import kept_after_sealing, prune_sealed
from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.rungs import AnySlot, Slot
from shardline.config.sweeps import SweepPlan
from shardline.records.sweeps import Candidate, Proposal, Seen, TrialResult
from shardline.results.sweeps.proposing import next_proposal
from shardline.results.sweeps.trials import (
    read_proposal,
    read_results,
    trials_so_far,
    value_of,
)


def proposal_of(plan: SweepPlan, layout: ResultsLayout, slot: AnySlot) -> Proposal:
    """Return the proposal of a slot from the files that it needs, without the runs."""
    before, known = plan.needs(slot)
    last = None if before is None else read_proposal(plan.proposal(layout, before))
    results = [read_results(plan, layout, one) for one in known]
    return again(plan, slot, last, results, lambda n: read_proposal(plan.proposal(layout, n)))


def again(
    plan: SweepPlan, slot: AnySlot, before: Proposal | None, results: Sequence[Sequence[TrialResult]],
    trial_proposal: Callable[[int], Proposal],
) -> Proposal:  # fmt: skip
    """Return the proposal of a slot; see `next_proposal` and `next_promotion`."""
    if isinstance(slot, Slot):
        return next_promotion(plan, slot, before, results, trial_proposal)
    return next_proposal(plan, slot, before, results)


def next_promotion(
    plan: SweepPlan, slot: Slot, before: Proposal | None, results: Sequence[Sequence[TrialResult]],
    trial_proposal: Callable[[int], Proposal],
) -> Proposal:  # fmt: skip
    """Return the choice of a promotion, without the runs.

    The best candidate is promoted, the first of equals. Trials without a value are the worst. If all have none, the
    first of them is promoted without a training.

    Args:
        before: Promotion before, in the same bracket; None for the first.
        results: Results that join the candidates, see `SweepPlan.needs`, each a list of trainings.
        trial_proposal: Function that returns the proposal of a trial.
    """
    assert plan.halving
    first = plan.halving.keep * slot.place
    new = [_candidate(first + number, known) for number, known in enumerate(results)]
    sign = 1 if plan.settings.objective.mode == "min" else -1
    ranked = sorted(
        [*(before.left if before else ()), *new],
        key=lambda one: (math.inf if one.value is None else sign * one.value, one.place),
    )
    best, *left = ranked
    of_trial = trial_proposal(best.trial)
    return Proposal(
        study=plan.id,
        trial=best.trial,
        rung=slot.rung,
        settings=of_trial.settings,
        keys=of_trial.keys,
        row=of_trial.row,
        runs=[run if end else "" for run, end in zip(best.runs, best.is_final, strict=True)],
        excluded=best.failure,
        chosen=best,
        left=left,
    )


def _candidate(place: int, results: Sequence[TrialResult]) -> Candidate:
    return Candidate(
        trial=results[0].trial,
        place=place,
        value=value_of(results),
        failure=next((one.failure for one in results if one.failure), ""),
        runs=[one.run for one in results],
        is_final=[one.is_final for one in results],
    )


def beaten(plan: SweepPlan, slot: Slot, promotion: Proposal) -> list[Candidate]:
    """Return the candidates that no later promotion of their bracket can choose."""
    assert plan.halving
    number, most = plan.halving.of_bracket(slot)
    return promotion.left[most - number - 1 :]


def beaten_trials(plan: SweepPlan, layout: ResultsLayout) -> set[int]:
    """Return the trials that are never promoted, as far as it is decided."""
    if not plan.halving:
        return set()
    found = set()
    for slot in plan.halving.slots(plan.trials):
        if (path := plan.proposal(layout, slot)).exists():
            found |= {one.trial for one in beaten(plan, slot, read_proposal(path))}
    return found


def waiting_runs(project: Project) -> dict[str, str]:
    """Return the runs whose states a longer rung may still continue: the name of the sweep by id of the run.

    They are those of trials that are neither beaten nor at the last rung, and of trainings that have no result yet.
    """
    found: dict[str, str] = {}
    for plan in project.sweeps.values():
        if not plan.rungs:
            continue
        for slot in plan.slots:
            path = plan.proposal(project.layout, slot)
            if path.exists() and not all(
                one.exists() for one in plan.results(project.layout, slot)
            ):
                found |= dict.fromkeys(read_proposal(path).runs, plan.name)
        if plan.halving:
            out = beaten_trials(plan, project.layout)
            for one in trials_so_far(plan, project.layout):
                if one.trial not in out and one.rung < len(plan.rungs) - 1:
                    found |= dict.fromkeys(one.runs, plan.name)
    return found


def stops(plan: SweepPlan, told: Sequence[Seen], rung: int, value: float) -> bool:
    """Return whether a trial stops at a rung by the median rule.

    Args:
        told: Earlier trials. One that failed at the rung counts as the worst there.
    """
    rule, sign = plan.median, 1 if plan.settings.objective.mode == "min" else -1
    assert rule
    if rung < rule.warmup_rungs:
        return False
    there = [
        sign * one.values[rung] if len(one.values) > rung else math.inf
        for one in told
        if len(one.values) > rung or (one.value is None and len(one.values) == rung)
    ]
    return len(there) >= max(rule.startup_trials, 1) and sign * value > median(there)


def forget_states(project: Project, plan: SweepPlan, run: str) -> None:
    """Remove the training checkpoints of a rung that no longer rung continues.

    States of rows of the table stay, as do those that `checkpoint.keep_last` or `after_sealing: all` keeps.

    Args:
        run: Id of the run.
    """
    settings = project.runs[plan.base].settings.checkpoint
    if project.runtime.checkpoint.after_sealing == "all" or run in project.runs:
        return
    checkpoints = project.layout.declared.work(run) / "checkpoints"
    prune_sealed(checkpoints, kept_after_sealing("none", keep_last=settings.keep_last))


def needs_last(row: RunPlan) -> bool:
    """Return whether the last state of a row of the table stays."""
    return row.settings.checkpoint.keep_last or "last" in row.needed_states
