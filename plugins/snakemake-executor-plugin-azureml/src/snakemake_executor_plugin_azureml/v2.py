"""The service through azure-ai-ml."""

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from azure.ai.ml import MLClient, Output, command
from azure.ai.ml.entities import (
    Environment,
    ManagedIdentityConfiguration,
    UserIdentityConfiguration,
)
from azure.core.exceptions import ResourceNotFoundError

from snakemake_executor_plugin_azureml.client import RemoteJob, make_credential, status_of
from snakemake_executor_plugin_azureml.job_request import (
    CODE_VARIABLE,
    EnvironmentRequest,
    JobRequest,
)
from snakemake_executor_plugin_azureml.logs import own_logs, read_tails
from snakemake_executor_plugin_azureml.options import SERVERLESS, JobIdentity
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

_MAX_PAGES = 5


def make(
    settings: ExecutorSettings, *, code: Path, workflow: str, pause: Callable[[], None]
) -> "ClientV2":
    """Return a client of the workspace in the settings."""
    for name in ("azure.ai.ml", "azure.identity", "azure.core", "msrest"):
        logging.getLogger(name).setLevel(logging.ERROR)  # hints about experimental classes
    client = MLClient(
        make_credential(),
        settings.subscription,
        settings.resource_group,
        settings.workspace,
        enable_telemetry=False,
        show_progress=False,
        connection_timeout=settings.request_timeout_s,
        read_timeout=settings.request_timeout_s,
    )
    return ClientV2(client, code=code, workflow=workflow, pause=pause)


class ClientV2:
    """A `Client` of one workspace, through azure-ai-ml."""

    def __init__(
        self, client: MLClient, *, code: Path, workflow: str, pause: Callable[[], None]
    ) -> None:
        self._ml = client
        self._code: str | Path = code
        self._workflow = workflow
        self._pause = pause
        self._preparing = threading.Lock()
        self._environment = cache(self._registered)

    def submit(self, request: JobRequest) -> RemoteJob:
        """Create the job; the first job uploads the code, and later jobs refer to it."""
        with self._preparing:
            environment = self._environment(request.environment)
            if isinstance(self._code, Path):
                created = self._ml.jobs.create_or_update(
                    build_job(request, code=self._code, environment=environment)
                )
                if created.code:
                    self._code = str(created.code)
                return _job(created)
        return _job(
            self._ml.jobs.create_or_update(
                build_job(request, code=self._code, environment=environment)
            )
        )

    def find(self, name: str) -> RemoteJob | None:
        """Return the job with this name, or None if no job has it."""
        try:
            return _job(self._ml.jobs.get(name))
        except ResourceNotFoundError:
            return None

    def status(self, names: Collection[str]) -> dict[str, RemoteJob]:
        """Return the existing ones of these jobs."""
        return status_of(names, self._listed, self.find, self._pause)

    def _listed(self, names: Collection[str]) -> dict[str, RemoteJob]:
        found: dict[str, RemoteJob] = {}
        pages = self._ml.jobs.list(tag=self._workflow).by_page()
        for _ in range(_MAX_PAGES):
            self._pause()
            page = next(pages, None)
            if page is None:
                break
            jobs = [_job(entry) for entry in page if entry is not None]
            found.update((job.name, job) for job in jobs if job.name in names)
            if len(found) == len(names):
                break
        return found

    def reason(self, name: str) -> str:
        """Return the error of the job's run."""
        error = getattr(getattr(self._details(name), "error", None), "error", None)
        parts = [getattr(error, "code", None), getattr(error, "message", None)]
        return ": ".join(part for part in parts if part)

    def ended(self, name: str) -> datetime | None:
        """Return when the job's run ended."""
        ended: datetime | None = self._details(name).end_time_utc
        return ended

    def logs(self, name: str) -> dict[str, str]:
        """Return the last part of each log."""
        return read_tails(own_logs(self._details(name).log_files or {}))

    def cancel(self, name: str) -> None:
        """Ask the service to end the job."""
        with suppress(ResourceNotFoundError):
            self._ml.jobs.begin_cancel(name, polling=False)

    def _details(self, name: str) -> Any:
        # Otherwise the SDK only prints a failed job's error and log files.
        return self._ml.jobs._runs_operations.get_run_details(name)

    def _registered(self, wanted: EnvironmentRequest) -> str:
        if wanted.image:
            try:
                self._ml.environments.get(wanted.name, version=wanted.version)
            except ResourceNotFoundError:
                self._ml.environments.create_or_update(build_environment(wanted))
        if not wanted.version:
            return f"azureml:{wanted.name}@latest"
        return f"azureml:{wanted.name}:{wanted.version}"


def build_environment(wanted: EnvironmentRequest) -> Environment:
    """Return the environment as azure-ai-ml's object."""
    import yaml

    conda = yaml.safe_load(wanted.conda) if wanted.conda else None
    return Environment(
        name=wanted.name, version=wanted.version, image=wanted.image, conda_file=conda
    )


def build_job(request: JobRequest, *, code: str | Path, environment: str) -> Any:
    """Return the job as azure-ai-ml's object."""
    distribution = {
        "type": request.distribution,
        "process_count_per_instance": request.processes_per_node,
    }
    return command(
        name=request.name,
        display_name=request.name,
        experiment_name=request.experiment,
        command=request.command,
        code=str(code),
        environment=environment,
        compute=None if request.compute == SERVERLESS else request.compute,
        instance_type=request.instance_type or None,
        instance_count=request.nodes,
        distribution=distribution if request.distribution else None,
        environment_variables=dict(request.variables),
        tags=dict(request.tags),
        outputs={
            mount.key: Output(type="uri_folder", mode="rw_mount", path=mount.uri)
            for mount in request.mounts
        },
        shm_size=request.shm_size or None,
        docker_args=request.docker_args or None,
        timeout=request.time_limit_s or None,
        identity=_identity(request.identity),
        priority=request.priority or None,
    )


def _identity(identity: JobIdentity | None) -> Any:
    if identity is None:
        return None
    if identity.kind == "user":
        return UserIdentityConfiguration()
    return ManagedIdentityConfiguration(client_id=identity.client_id or None)


def _job(job: Any) -> RemoteJob:
    status = job.status
    variables = getattr(job, "environment_variables", None) or {}
    return RemoteJob(
        name=job.name,
        status=str(getattr(status, "value", status)),
        tags=dict(job.tags or {}),
        url=job.studio_url or "",
        code=variables.get(CODE_VARIABLE, ""),
    )
