"""State of each run: done, trained, running, failed, stopped, stale or new."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from shardline.config.bases import Base
from shardline.config.layout import ResultsLayout, names_that_have_been
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.errors import DataError
from shardline.core.files import read_json, read_object
from shardline.records.base import encode
from shardline.records.model_warnings import ModelWarning, read_warnings
from shardline.results.outcomes import failure_of
from shardline.results.repeats import means_of
from shardline.results.running import progress_of
from shardline.supervision.attempt_log import last_recorded_step, read_attempts

# name of a folder of a dataset or run
IDENTITY = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")


class State(StrEnum):
    """State of a run."""

    DONE = "done"
    TRAINED = "trained"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    STALE = "stale"
    NEW = "new"


def describe_runs(project: Project) -> list[dict[str, Any]]:
    """Return one record per run of the config, as `shardline ls --json` prints it."""
    names = sealed_names(project.layout)
    records: list[dict[str, Any]] = []
    for run in project.runs.values():
        state = state_of(run, names, project.runs)
        failure = failure_of(run, project.runs) if state is State.FAILED else None
        progress = progress_of(run) if state is State.RUNNING else None
        records.append(
            {
                "run": run.name,
                "names": list(run.names),
                "id": run.id,
                "dataset": run.dataset_name,
                "model": run.row.model,
                "bases": [_base(one) for one in run.bases],
                "state": state.value,
                "step": last_step(run) if state is State.STOPPED else None,
                "progress": asdict(progress) if progress else None,
                "failure": encode(failure) if failure else None,
                "headline": headline_of(run) if state is State.DONE else None,
                "warnings": [asdict(one) for one in warnings_on(run)],
                "folder": run.folder,
            }
        )
    means = means_of(project, {record["run"]: record["headline"] for record in records})
    return [{**record, "mean": means.get(record["run"])} for record in records]


def warnings_on(run: RunPlan) -> list[ModelWarning]:
    """Return the warnings on a run's sealed model; empty without a model."""
    if not run.has_model:
        return []
    provenance = read_if_sound(run.folder / "provenance.json")
    return read_warnings(run.folder / "metrics.jsonl", provenance, read_if_sound(run.evaluation))


def read_if_sound(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or damaged, which `shardline verify` reports."""
    try:
        return read_object(path, remedy="")
    except DataError:
        return {}


def _base(base: Base) -> dict[str, Any]:
    kept = ("kind", "source", "name", "run", "state", "identity")
    return {key: getattr(base, key) for key in kept}


def state_of(
    run: RunPlan, known_names: set[str], runs: Mapping[str, RunPlan] | None = None
) -> State:
    """Return a run's state.

    Args:
        known_names: Names of all sealed models, from `sealed_names`.
        runs: Runs of the project by id, see `failure_of`.
    """
    if run.is_sealed:
        return State.DONE
    if not is_trained(run) and progress_of(run):
        return State.RUNNING
    if failure_of(run, runs):
        return State.FAILED
    if is_trained(run):
        return State.TRAINED
    checkpoints = run.layout.work(run.id) / "checkpoints"
    if any(not path.name.startswith(".") for path in checkpoints.glob("*")):
        return State.STOPPED  # scripts choose the names of their checkpoints
    return State.NEW if known_names.isdisjoint(run.names) else State.STALE


def is_trained(run: RunPlan) -> bool:
    """Return whether the model of a run is sealed, here or in a storage."""
    return run.has_model


def sealed_names(layout: ResultsLayout) -> set[str]:
    """Return all names, present and past, of identities with a sealed model."""
    names = names_that_have_been(layout, "run")
    folders = {model.parent.name for model in layout.folder_of("run").glob("*/model.safetensors*")}
    return {name for identity in folders for name in names.get(identity, ())}


def last_step(run: RunPlan) -> int | None:
    """Return the last optimiser step that an unfinished training recorded or saved."""
    work = run.layout.work(run.id)
    steps = [last_recorded_step(work)]
    with suppress(DataError):
        steps += [attempt.last_step for attempt in read_attempts(work)[-1:]]
    return max((step for step in steps if step is not None), default=None)


def headline_of(run: RunPlan) -> dict[str, Any] | None:
    """Return the headline metric of an evaluated run; None if the script reported no metrics."""
    try:
        headline = read_json(run.evaluation, remedy="")["headline"]
        if headline["value"] is None:
            return None  # the script reported no metrics
        return {
            "metric": str(headline["metric"]),
            "mode": "min" if headline.get("mode") == "min" else "max",
            "value": float(headline["value"]),
        }
    except (DataError, KeyError, TypeError, ValueError):
        return {"metric": "unreadable", "mode": None, "value": None}
