"""Check of sweeps: models of trials, the metric of the objective, and a sampler or constraints of the user."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shardline.config.load import load_variant
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import canonical_json
from shardline.core.errors import ConfigError
from shardline.results.check.checked_models import check_models
from shardline.results.check.found import Finding
from shardline.results.sweeps.earlier import all_notes
from shardline.results.sweeps.proposing import next_proposal


def check_sweeps(project: Project, plans: Sequence[SweepPlan]) -> list[Finding]:
    """Return what is wrong or odd about sweeps; the start of Snakemake prints what is odd, too."""
    found = [
        Finding(kind="warning", sentence=note)
        for plan in plans
        for note in all_notes(project, plan)
    ]
    return found + [
        Finding(kind="error", sentence=problem) for plan in plans for problem in _of_first(plan)
    ]


def _of_first(plan: SweepPlan) -> Iterator[str]:
    """Yield why the first trial cannot be proposed, of a sampler or constraints of the user."""
    if ":" in plan.settings.sampler or plan.settings.constraints:
        try:
            next_proposal(plan, 0, None, [])
        except ConfigError as error:
            yield f"sweeps.{plan.name}.{error}"


def check_trials(
    project: Project, plans: Iterable[SweepPlan], *, limit_s: float | None = None, is_elsewhere: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> list[Finding]:  # fmt: skip
    """Try the models of the first and the last values of each space, and look for the metric of the objective.

    The arguments are those of `check_models`. The same mistake at both ends is an error. Another one is a warning,
    since a trial that fails by itself is a result.
    """
    plans = [*plans]
    tried = {
        (plan.name, shown): run for plan in plans for shown, run in _ends_of(project, plan).items()
    }
    by_key = {f"{name} {shown}": run for (name, shown), run in tried.items()}
    if not by_key:
        return []
    results = check_models(
        project, by_key, limit_s=limit_s, is_elsewhere=is_elsewhere, announce=announce
    ).results
    found = []
    for plan in plans:
        ends = {shown: f"{name} {shown}" for name, shown in tried if name == plan.name}
        problems = {
            shown: [_of_objective(one) for one in results[key].problems]
            for shown, key in ends.items()
            if key in results
        }
        in_all = [one for one in _first(problems) if all(one in some for some in problems.values())]
        found += [Finding(kind="error", sentence=f"sweeps.{plan.name}: {one}") for one in in_all]
        found += [
            Finding(
                kind="warning",
                sentence=f"sweeps.{plan.name}: trials with {shown} would fail: {one}",
            )
            for shown, some in problems.items()
            for one in some
            if one not in in_all
        ]
    return found


def _first(problems: dict[str, list[str]]) -> list[str]:
    return next(iter(problems.values()), [])


def _of_objective(problem: str) -> str:
    return problem.replace("checkpoint.monitor", "objective.metric")


def _ends_of(project: Project, plan: SweepPlan) -> dict[str, RunPlan]:
    """Return the runs of the first and of the last values of all settings, by these settings as text."""
    found = {}
    objective = plan.settings.objective
    watched = {"checkpoint.monitor": objective.metric, "checkpoint.mode": objective.mode}
    for last in (False, True):
        settings: dict[str, Any] = plan.space.ends(is_last=last)
        try:
            run = load_variant(
                project, project.runs[plan.base], {**settings, **watched}, name=plan.name, where=""
            )
        except ConfigError:
            continue  # drawn settings tell how many are impossible
        found[canonical_json(settings)] = run
    return found
