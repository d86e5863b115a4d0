"""The rows of a logger plugin's final table: one row per run and sweep of this Snakemake process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ShardlineError
from shardline.core.redaction import mask
from shardline.records.sweeps import ReportedStudy
from shardline.results.outcomes import base_without_model, failure_of, waited_in_vain
from shardline.results.states import headline_of, read_if_sound, warnings_on
from shardline.results.sweeps.trials import study_so_far
from shardline.supervision.attempt_log import sealed_again


def finished(project: Project, exists: Callable[[Path], bool]) -> frozenset[str]:
    """Return the runs that are sealed and evaluated, and the sweeps that are sealed.

    Args:
        exists: function that returns whether a file exists, on this disk or in the storage.
    """
    sweeps = project.sweeps.items()
    return frozenset(
        [
            *(k for k, run in project.runs.items() if exists(run.model) and exists(run.evaluation)),
            *(_key(study) for study, plan in sweeps if exists(plan.summary(project.layout))),
        ]
    )


def final_rows(project: Project, before: Collection[str]) -> list[dict[str, object]]:
    """Return the rows for a log record's `results`, see the plugin's README.

    Args:
        before: runs and sweeps that were finished when Snakemake started, see `finished`; they get no row.
    """
    sweeps = (plan for study, plan in project.sweeps.items() if _key(study) not in before)
    return [*_rows_of_runs(project, before), *(_row_of_sweep(project, plan) for plan in sweeps)]


def _key(study: str) -> str:
    return f"study {study}"


def _row_of_sweep(project: Project, plan: SweepPlan) -> dict[str, object]:
    title, layout = mask(f"{plan.name} (sweep)"), project.layout.declared
    try:
        study = study_so_far(plan, project.layout)
    except ShardlineError as error:  # a changed file
        return {"title": title, "done": False, "headline": "", "note": mask(str(error))}
    best = next((one for one in study.trials if one.trial == study.best), None)
    of = f"of {study.planned} trials"
    best_so_far = f"{study.metric} {best.value:#.4g}, the best {of}" if best else ""
    return {
        "title": title,
        "done": plan.summary(project.layout).exists(),
        "headline": mask(best_so_far or f"{len(study.trials)} {of}, none with a value"),
        "logs": [str(layout.log(rule, key)) for rule, key in plan.jobs],
        "note": mask("\n".join(_notes_on_trials(study))),
    }


def _notes_on_trials(study: ReportedStudy) -> Iterator[str]:
    failed = [one for one in study.trials if one.failure]
    listed = f"shardline ls --study {study.name}"
    if failed and len(failed) == len(study.trials):
        last = failed[0].failure.strip().splitlines()[-1].strip()
        yield f"warning: all of its trials failed, trial {failed[0].trial} with: {last}; `{listed}` lists why"
    elif failed:
        yield f"{len(failed)} failed: `{listed}` lists why"
    if study.best is not None:
        yield f"`shardline best {study.name}` prints trial {study.best} as a row of the run table"


def _rows_of_runs(project: Project, before: Collection[str]) -> list[dict[str, object]]:
    waited = waited_in_vain(project)
    return [
        {
            "title": mask(run.name),
            "done": run.is_sealed,
            "headline": _headline(run),
            "logs": _logs(project, run),
            "cause": mask(failure.sentence) if (failure := failure_of(run, project.runs)) else "",
            "note": "\n".join(_notes(run, project.runs, () if failure else waited.get(key, ()))),
        }
        for key, run in project.runs.items()
        if key not in before
    ]


def _notes(run: RunPlan, runs: Mapping[str, RunPlan], waited: Sequence[str]) -> Iterator[str]:
    if waited:
        yield mask("; ".join(waited))
    if base := base_without_model(run, runs):
        yield mask(base)
    yield from (f"warning: {sentence}" for sentence in _warnings(run))


def _warnings(run: RunPlan) -> Iterator[str]:
    yield from (one.sentence for one in warnings_on(run))
    try:
        training = read_if_sound(run.folder / "provenance.json")["training"]
        if training["steps"] and training["resumed_step"] == training["steps"]:
            yield sealed_again(training["steps"], run.id)
    except (KeyError, TypeError):
        pass  # not trained yet, a script, or damaged


def _headline(run: RunPlan) -> str:
    """Return the headline metric of a run's evaluation; "" if there is none."""
    found = headline_of(run)
    known = found and found["value"] is not None
    return mask(f"{found['metric']} {found['value']:#.4g}") if found and known else ""


def _logs(project: Project, run: RunPlan) -> list[str]:
    """Return the logs of the jobs that belong to a single run."""
    layout = project.layout.declared
    jobs = (
        ("resolve_run", run.id),
        ("train", run.id),
        ("evaluate", f"{run.id}-{run.evaluation_id}"),
    )
    return [str(layout.log(rule, key)) for rule, key in jobs]
