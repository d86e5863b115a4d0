"""Which run of the table a run waits for, to continue it: the edges between trainings in the DAG.

Two kinds of edges lead from a run: to the longest shorter run whose whole training is its own, and, for a run that only
decays, to a run with a milestone on its way. A run of the second kind is no end of an edge, so there are no cycles.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.schedules import length, same_until
from shardline.config.scripts import is_script
from shardline.results.alike import LENGTH, rest_of
from shardline.results.continuing import MANY, has_own_optimizer, is_shorter, reads_of


def shorter_runs(project: Project, is_made: Callable[[RunPlan], bool]) -> dict[str, RunPlan]:
    """Return the run of the table that each run waits for, by id.

    Args:
        is_made: Function that returns whether a run is trained, or failed before.
    """
    groups: dict[str, dict[str, RunPlan]] = defaultdict(dict)
    for run in project.runs.values() if differ_in_length(project) else ():
        if not is_script(run.model_class) and not run.has_model:
            groups[rest_of(run.document)][run.id] = run
    found: dict[str, RunPlan] = {}
    for group in groups.values():
        if len(group) > 1:
            found |= _edges(project, group, is_made)
    return {key: one for key, one in found.items() if not is_made(one)}


def differ_in_length(project: Project) -> bool:
    """Return whether runs differ in length or horizon. Of most tables no run does, so that none waits for another."""
    return len({_ends(run) for run in project.runs.values()}) > 1


def _ends(run: RunPlan) -> tuple[object, ...]:
    """Return all settings in which runs may differ whose trainings are alike, see `alike.LENGTH`."""
    tables = ((table, getattr(run.settings, table)) for table in LENGTH)
    found = [getattr(settings, key) for table, settings in tables for key in LENGTH[table]]
    return run.settings.schedule.name, *found


def _edges(
    project: Project, group: Mapping[str, RunPlan], is_made: Callable[[RunPlan], bool]
) -> dict[str, RunPlan]:
    """Return the edges between runs that differ only in their length."""
    runs = [*group.values()]
    if reads_of(project, runs[0]):  # they have the same code
        return {}
    has_own = has_own_optimizer(project, runs[0])
    whole = {
        run.id: [one for one in runs if _is_begin_of(one, run, has_own=has_own)] for run in runs
    }
    ends = {one.id for some in whole.values() for one in some}
    branches = [run for run in runs if run.id not in ends and not whole[run.id]]
    trunks = [one for one in runs if one not in branches]
    if not trunks and (longest := _longest(one for one in runs if _milestones(one))):
        # all of them decay: the longest is the trunk of the others
        trunks = [longest]
        branches.remove(longest)
    trunks = [one for one in trunks if not is_made(one)]
    found = {}
    for run in runs:
        left = [one for one in whole[run.id] if not is_made(one) and _stays(project, one)]
        if best := _longest(left):
            found[run.id] = best
        elif run in branches:
            passed = {one.id: _milestone(one, run) for one in trunks}
            best = max(trunks, key=lambda one: passed[one.id], default=None)
            if best and passed[best.id]:
                found[run.id] = best
    return found


def _longest(runs: Iterable[RunPlan]) -> RunPlan | None:
    best: RunPlan | None = None
    for one in runs:
        if best is None or is_shorter(best.settings.trainer, one.settings.trainer):
            best = one
    return best


def _stays(project: Project, run: RunPlan) -> bool:
    """Return whether the last state of a run stays when it is sealed."""
    return project.runtime.checkpoint.after_sealing != "none" or run.settings.checkpoint.keep_last


def _steps_of(epochs: int) -> int:
    """Return steps of epochs whose length only the data decides: equal for equal epochs, and many."""
    return MANY * epochs


def _is_begin_of(shorter: RunPlan, run: RunPlan, *, has_own: bool) -> bool:
    """Return whether the whole training of a run is the beginning of another one, as far as settings show."""
    if not is_shorter(shorter.settings.trainer, run.settings.trainer):
        return False
    until = same_until(shorter.settings, run.settings, _steps_of)
    # of a state before the end, little more is trained again
    return has_own or until >= length(shorter.settings, _steps_of) - 1


def _milestone(trunk: RunPlan, run: RunPlan) -> int:
    """Return the last milestone of a run that is on the way of another one; 0 for none."""
    until = same_until(trunk.settings, run.settings, _steps_of)
    ends = length(run.settings, _steps_of)
    return max((step for step in _milestones(trunk) if step <= until and step < ends), default=0)


def _milestones(run: RunPlan) -> list[int]:
    """Return the steps of the milestones of a run."""
    given = run.settings.checkpoint.milestones
    return [*map(_steps_of, given)] if isinstance(given, list) else [*given.steps]
