"""Write `run.json`, the resolved settings of a training."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.core.canonical import digest
from shardline.provenance.actions import Action
from shardline.records.origins import DatasetRef, MixedDataset
from shardline.records.runs import ResolvedRun
from shardline_io.order import VERSION as ORDER_VERSION


def locked(project: Project, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the locked environment of a stage: `python`, and `requirements` of the lock."""
    environment = document["environment"]
    requirements = project.lock.requirements(environment["packages"])
    return {"python": environment["python"], "requirements": requirements}


def describe_run(project: Project, run: RunPlan, action: Action) -> ResolvedRun:
    """Return the content of `run.json`.

    Args:
        action: Action of the job that writes the file; it ends now.
    """
    mixed = [MixedDataset(id=part.dataset.id, weight=str(part.weight)) for part in run.parts]
    return ResolvedRun(
        run=run.id,
        identity=digest(run.document),
        dataset=DatasetRef(id=run.dataset.id) if len(mixed) == 1 else UNSET,
        datasets=mixed if len(mixed) > 1 else UNSET,
        order=ORDER_VERSION,
        model=run.row.model,
        model_class=run.model_class,
        settings=as_plain(run.settings),
        environment=run.environment.locked if run.environment else locked(project, run.document),
        definitions=dict(run.definitions),
        bases=[one.record for one in run.bases] or UNSET,
        action=action.record(),
    )
