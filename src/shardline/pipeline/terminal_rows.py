"""The rows of a logger plugin's final table: one row per run of this Snakemake process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.redaction import mask
from shardline.results.outcomes import base_without_model, failure_of, waited_in_vain
from shardline.results.states import headline_of, read_if_sound, warnings_on
from shardline.supervision.attempt_log import sealed_again


def finished(project: Project, exists: Callable[[Path], bool]) -> frozenset[str]:
    """Return the runs that are sealed and evaluated.

    Args:
        exists: function that returns whether a file exists, on this disk or in the storage.
    """
    return frozenset(
        key for key, run in project.runs.items() if exists(run.model) and exists(run.evaluation)
    )


def rows_of_runs(project: Project, before: Collection[str]) -> list[dict[str, object]]:
    """Return the rows for a log record's `results`, see the plugin's README.

    Args:
        before: runs that were finished when Snakemake started; they get no row.
    """
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
