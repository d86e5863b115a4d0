"""What the workspace keeps: jobs, experiments, environments, code, datastores, blobs."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.azureml.emulator.constants import (
    ARTIFACT_DATASTORE,
    ARTIFACTS,
    COMPUTES,
    DATASTORE,
    experiment_id,
)
from tests.azureml.emulator.jobs import Job, JobSpec, now
from tests.azureml.emulator.scheduler import Scheduler

NO_JOB = "Run {name} was not found"


class ServiceError(Exception):
    """An answer that says what went wrong, as the service says it."""

    def __init__(self, status: int, message: str, code: str = "UserError") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Workspace:
    """The emulated service's memory and its files; `lock` guards it."""

    def __init__(self, folder: Path, scheduler: Scheduler) -> None:
        self.lock = threading.RLock()
        self.scheduler = scheduler
        self.blobs = folder / "blobs"
        # Each is a container of the storage account, so that mounts and blobs are the same files.
        self.datastores = {ARTIFACT_DATASTORE: self.blobs / ARTIFACTS}
        self.jobs: dict[str, Job] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self.assets: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.environments: dict[str, dict[str, Any]] = {}  # of v1, by name
        self.snapshots: dict[str, dict[str, Path]] = {}  # of v1
        self.datastore(DATASTORE)

    def datastore(self, name: str) -> Path:
        """Return the folder that a datastore is here; it is made when first asked for."""
        folder = self.datastores.setdefault(name, self.blobs / name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def require_datastore(self, name: str) -> str:
        """Return the name of a datastore's container.

        Raises:
            ServiceError: 404, there is none of that name.
        """
        if name not in self.datastores:
            raise ServiceError(404, f"Could not find datastore: {name}")
        return self.datastores[name].name

    def experiment(self, name: str) -> dict[str, Any]:
        """Return an experiment, made when first asked for."""
        made = {"experimentId": experiment_id(name), "name": name, "createdUtc": now(), "tags": {}}
        return self.experiments.setdefault(name, {**made, "archivedTime": None})

    def job(self, name: str) -> Job:
        """Return a job.

        Raises:
            ServiceError: 404, there is none of that name.
        """
        if name not in self.jobs:
            raise ServiceError(404, NO_JOB.format(name=name))
        return self.jobs[name]

    def submit(
        self, spec: JobSpec, *, tags: Mapping[str, str], properties: Mapping[str, str]
    ) -> Job:
        """Accept a job.

        Raises:
            ServiceError: its compute is unknown or too small.
        """
        if spec.compute not in COMPUTES:
            raise ServiceError(404, f"Unknown compute target '{spec.compute}'.")
        limit = self.scheduler.ways.nodes
        if not 1 <= spec.nodes <= limit:
            raise ServiceError(
                400,
                f"The specified node count {spec.nodes} exceeds the maximum node count {limit} "
                f"of compute {spec.compute}.",
            )
        for mount in spec.mounts:
            self.require_datastore(mount.datastore)
        self.experiment(spec.experiment)
        artifacts = self.blobs / ARTIFACTS / "ExperimentRun" / f"dcid.{spec.name}"
        artifacts.mkdir(parents=True)
        job = Job(spec, artifacts, tags=dict(tags), properties=dict(properties))
        self.jobs[spec.name] = job
        self.scheduler.submit(job)
        return job

    def compute_document(self, name: str) -> dict[str, Any]:
        """Return what both interfaces say of a compute cluster.

        Raises:
            ServiceError: 404, there is none of that name.
        """
        if name not in COMPUTES:
            raise ServiceError(404, f"Compute {name} was not found", "ResourceNotFound")
        counts = ("idle", "running", "preparing", "unusable", "leaving", "preempted")
        cluster = {
            "vmSize": "STANDARD_ND40RS_V2",
            "vmPriority": COMPUTES[name],
            "osType": "Linux",
            "subnet": None,
            "userAccountCredentials": {},
            "remoteLoginPortPublicAccess": "NotSpecified",
            "scaleSettings": {
                "minNodeCount": 0,
                "maxNodeCount": self.scheduler.ways.nodes,
                "nodeIdleTimeBeforeScaleDown": "PT120S",
            },
            "allocationState": "Steady",
            "allocationStateTransitionTime": now(),
            "currentNodeCount": 0,
            "targetNodeCount": 0,
            "nodeStateCounts": {f"{count}NodeCount": 0 for count in counts},
            "creationTime": now(),
            "errors": None,
        }
        return {
            "computeType": "AmlCompute",
            "computeLocation": "westeurope",
            "provisioningState": "Succeeded",
            "provisioningErrors": None,
            "description": None,
            "resourceId": None,
            "isAttachedCompute": False,
            "createdOn": now(),
            "modifiedOn": now(),
            "properties": cluster,
        }
