"""`run.json`: what a training is given, resolved to the last setting."""

from collections.abc import Mapping
from typing import Any

from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.run import Run
from shardline.core.canonical import digest
from shardline.core.seals import seal
from shardline.provenance.actions import Action
from shardline_io.order import VERSION as ORDER_VERSION


def locked(project: Project, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a stage's environment is to be: `python`, and `requirements` of the lock."""
    environment = document["environment"]
    requirements = project.lock.requirements(environment["packages"])
    return {"python": environment["python"], "requirements": requirements}


def describe_run(project: Project, run: Run, action: Action) -> dict[str, Any]:
    """Return `run.json`, sealed: what a training is given.

    Args:
        action: what writes it, which ends with this.
    """
    document = {
        "run": run.id,
        "identity": digest(run.document),
        **_datasets(run),
        "order": ORDER_VERSION,
        "model": run.row.model,
        "model_class": run.model_class,
        "settings": as_plain(run.settings),
        "environment": run.environment.locked if run.environment else locked(project, run.document),
        "definitions": run.definitions,
        "action": action.record(),
    }
    return seal(document)


def _datasets(run: Run) -> dict[str, Any]:
    if len(run.parts) == 1:
        return {"dataset": {"id": run.dataset.id}}
    return {"datasets": [{"id": part.dataset.id, "weight": str(part.weight)} for part in run.parts]}
