"""What a logger plugin writes into its table at the end: a row for each run of this start of Snakemake."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.core.redaction import mask
from shardline.results.outcomes import failure_of
from shardline.results.states import warnings_on
from shardline.supervision.attempts import sealed_again


def finished(project: Project, exists: Callable[[Path], bool]) -> frozenset[str]:
    """Return the runs that are sealed and evaluated.

    Args:
        exists: whether a file is there, here or in the storage.
    """
    return frozenset(
        key for key, run in project.runs.items() if exists(run.model) and exists(run.evaluation)
    )


def rows_of_runs(project: Project, before: Collection[str]) -> list[dict[str, object]]:
    """Return the rows of a log record's `results`, see the plugin's README.

    Args:
        before: runs that were finished when Snakemake was started, which have no row.
    """
    return [
        {
            "title": mask(run.name),
            "done": run.is_sealed,
            "headline": _headline(run),
            "logs": _logs(project, run),
            "cause": _cause(run),
            "note": "\n".join(f"warning: {sentence}" for sentence in _notes(run)),
        }
        for key, run in project.runs.items()
        if key not in before
    ]


def _notes(run: RunPlan) -> Iterator[str]:
    yield from (one.sentence for one in warnings_on(run))
    try:
        training = read_json(run.folder / "provenance.json", remedy="")["training"]
        if training["steps"] and training["resumed_step"] == training["steps"]:
            yield sealed_again(training["steps"], run.id)
    except (DataError, KeyError, TypeError):
        pass  # not trained yet, by a script, or damaged


def _cause(run: RunPlan) -> str:
    failure = failure_of(run)
    return mask(failure.sentence) if failure else ""


def _headline(run: RunPlan) -> str:
    """Return the headline metric of a run's evaluation; "" where there is none that can be read."""
    try:
        headline = read_json(run.evaluation, remedy="")["headline"]
        return mask(f"{headline['metric']} {float(headline['value']):#.4g}")
    except (DataError, KeyError, TypeError, ValueError):
        return ""


def _logs(project: Project, run: RunPlan) -> list[str]:
    """Return the logs of the jobs that a run needs for itself alone."""
    layout = project.layout.declared
    jobs = (
        ("resolve_run", run.id),
        ("train", run.id),
        ("evaluate", f"{run.id}-{run.evaluation_id}"),
    )
    return [str(layout.log(rule, key)) for rule, key in jobs]
