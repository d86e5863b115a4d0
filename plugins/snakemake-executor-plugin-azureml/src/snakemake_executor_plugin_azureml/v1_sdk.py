"""azureml-core in the process of `v1`, with patches that affect only this process."""

import logging
import os
import tempfile
import threading
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import requests

# azureml-core logs through the root logger, and adds a handler that writes to the terminal.
logging.root.addHandler(logging.NullHandler())
# After a 429, its own retries sleep 32, 64 and 128 s, whatever the service asks for, and cannot be
# interrupted. So each request is made once, and the caller retries. The variable is read at import.
os.environ.setdefault("AZUREML_DEFAULT_RETRIES", "0")
from azureml._base_sdk_common.tracking import tracking_info_registry  # noqa: E402
from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace  # noqa: E402
from azureml.core.authentication import Audience, TokenAuthentication  # noqa: E402
from azureml.core.conda_dependencies import CondaDependencies  # noqa: E402
from azureml.core.runconfig import (  # noqa: E402
    DataReferenceConfiguration,
    DockerConfiguration,
    MpiConfiguration,
    PyTorchConfiguration,
)

from snakemake_executor_plugin_azureml.child_process import serve  # noqa: E402
from snakemake_executor_plugin_azureml.client import RemoteJob, make_credential  # noqa: E402
from snakemake_executor_plugin_azureml.job_request import (  # noqa: E402
    CODE_VARIABLE,
    EnvironmentRequest,
    JobRequest,
)
from snakemake_executor_plugin_azureml.logs import own_logs, read_tails  # noqa: E402
from snakemake_executor_plugin_azureml.service_retries import status_code  # noqa: E402
from snakemake_executor_plugin_azureml.settings import ExecutorSettings  # noqa: E402

for _handler in logging.root.handlers[1:]:
    logging.root.removeHandler(_handler)

# To record the state of git, each submission would change the process's folder while other threads
# run. Git runs in the current folder, which is the workflow's folder.
tracking_info_registry.working_directory_context = nullcontext

_send = requests.adapters.HTTPAdapter.send
_MAX_LISTED = 500


def make(*, settings: ExecutorSettings, code: Path, workflow: str) -> "Sdk":
    """Return the object that serves calls for the workspace in the settings."""
    credential = make_credential()
    for name in ("azureml", "azure", "msrest", "adal"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _wait_at_most(settings.request_timeout_s)

    def token(audience: str) -> str:
        return str(credential.get_token(audience.rstrip("/") + "/.default").token)

    workspace = Workspace.get(
        settings.workspace,
        auth=_Authentication(token, cloud="AzureCloud"),
        subscription_id=settings.subscription,
        resource_group=settings.resource_group,
    )
    experiment = Experiment(workspace, settings.experiment)
    return Sdk(workspace, experiment, code=code, workflow=workflow)


class _Authentication(TokenAuthentication):
    """Tokens of a credential, also for jobs with the user's own identity."""

    def _get_azureml_client_token(self) -> str:
        # azureml-core lacks this method; without it, jobs with the user's identity cannot be submitted.
        return str(self.get_token(Audience.AZUREML))


class Sdk:
    """One experiment of a workspace."""

    def __init__(
        self, workspace: Workspace, experiment: Experiment, *, code: Path, workflow: str
    ) -> None:
        self._workspace = workspace
        self._experiment = experiment
        self._code = code
        self._workflow = workflow
        self._environment = cache(self._registered)
        # The SDK's file of uploaded snapshots, one per workspace, is not safe for parallel writes.
        self._submitting = threading.Lock()

    def submit(self, request: JobRequest) -> RemoteJob:
        """Create the job, and then its tags in a second request."""
        with self._submitting:
            run = self._experiment.submit(
                build_run(request, self._code, self._environment(request.environment)),
                tags=dict(request.tags),
                run_id=request.name,
                credential_passthrough=bool(request.identity and request.identity.kind == "user"),
            )
        return replace(_job(run), tags=dict(request.tags), code=request.code)

    def find(self, name: str) -> RemoteJob | None:
        """Return the job with this name, or None if no job has it."""
        run = self._run(name)
        if run is None:
            return None
        if (job := _job(run)).runs:
            return job
        # The request for its tags was lost, so the digest comes from the job's variables.
        definition = run.get_details().get("runDefinition") or {}
        variables = definition.get("environmentVariables") or {}
        return replace(job, code=variables.get(CODE_VARIABLE, ""))

    def listed(self, names: Collection[str]) -> dict[str, RemoteJob]:
        """Return those of these jobs that are among the workflow's newest."""
        found: dict[str, RemoteJob] = {}
        runs = Run.list(self._experiment, tags={self._workflow: "1"}, _rehydrate_runs=False)
        for _, run in zip(range(_MAX_LISTED), runs, strict=False):
            if run.id in names:
                found[run.id] = _job(run)
            if len(found) == len(names):
                break
        return found

    def look_up(self, name: str) -> RemoteJob | None:
        """Return the job of this name as its run describes it, without the digest in its variables."""
        run = self._run(name)
        return None if run is None else _job(run)

    def reason(self, name: str) -> str:
        """Return the error of the run."""
        run = self._run(name)
        error = (run.get_details().get("error") or {}).get("error") or {} if run else {}
        return ": ".join(str(error[key]) for key in ("code", "message") if error.get(key))

    def ended(self, name: str) -> datetime | None:
        """Return the end time of the run."""
        run = self._run(name)
        ended = run.get_details().get("endTimeUtc") if run else None
        return datetime.fromisoformat(ended) if ended else None

    def logs(self, name: str) -> dict[str, str]:
        """Return the last part of each log."""
        run = self._run(name)
        return read_tails(own_logs(run.get_details().get("logFiles") or {})) if run else {}

    def cancel(self, name: str) -> None:
        """Ask the service to end the job."""
        run = self._run(name)
        if run is not None and not _job(run).state.is_over:
            run.cancel()

    def _run(self, name: str) -> Any:
        try:
            return Run(self._experiment, name)
        except Exception as error:
            if status_code(error) == 404:
                return None
            raise

    def _registered(self, wanted: EnvironmentRequest) -> Environment:
        # The service numbers versions here, so the plugin finds its environments by name.
        version = None if wanted.image else wanted.version or None
        try:
            return Environment.get(self._workspace, wanted.name, version)
        except Exception as error:
            if not wanted.image or status_code(error) != 404:
                raise
        return build_environment(wanted).register(self._workspace)


def _wait_at_most(seconds: float) -> None:
    """Limit the time that requests of azureml-core wait for an answer.

    Its sessions are not accessible to other code, and some of them have no limit. So the limit
    is set in `requests`, through which all requests pass.
    """

    def at_most(timeout: float | None) -> float:
        return seconds if timeout is None else min(timeout, seconds)

    def send(
        self: Any, request: Any, stream: bool = False, timeout: Any = None, **options: Any
    ) -> Any:
        if isinstance(timeout, tuple):  # (connect, read); azureml-core uses 80,000 s for uploads
            timeout = tuple(map(at_most, timeout))
        elif timeout is None or isinstance(timeout, int | float):
            timeout = at_most(timeout)
        return _send(self, request, stream, timeout, **options)

    requests.adapters.HTTPAdapter.send = send  # type: ignore[assignment, method-assign]


def build_environment(wanted: EnvironmentRequest) -> Environment:
    """Return the environment as azureml-core's object."""
    environment = Environment(wanted.name)
    environment.docker.base_image = wanted.image
    environment.python.user_managed_dependencies = not wanted.conda
    if wanted.conda:
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(wanted.conda)
            file.flush()
            environment.python.conda_dependencies = CondaDependencies(file.name)
    return environment


def build_run(request: JobRequest, code: Path, environment: Environment) -> ScriptRunConfig:
    """Return the job as azureml-core's object."""
    each, nodes, distribution = request.processes_per_node, request.nodes, None
    if request.distribution == "mpi":
        distribution = MpiConfiguration(each, nodes)
    elif request.distribution:  # its count is for all nodes together
        distribution = PyTorchConfiguration(process_count=each * nodes, node_count=nodes)
    docker = DockerConfiguration(
        use_docker=True,
        arguments=request.docker_args.split(),
        **({"shm_size": request.shm_size} if request.shm_size else {}),
    )
    config = ScriptRunConfig(
        str(code),
        command=request.command,
        compute_target=request.compute,
        environment=environment,
        distributed_job_config=distribution,
        docker_runtime_config=docker,
    )
    run = config.run_config
    run.environment_variables.update(request.variables)
    run.data_references = {
        mount.key: DataReferenceConfiguration(
            datastore_name=mount.datastore, mode="mount", path_on_datastore=mount.path
        )
        for mount in request.mounts
    }
    with suppress(ValueError):  # no priority
        run.priority = int(request.priority)
    if request.time_limit_s:
        run.max_run_duration_seconds = request.time_limit_s
    return config


def _job(run: Any) -> RemoteJob:
    return RemoteJob(
        name=run.id,
        status=str(run.status),
        tags=dict(run.tags or {}),
        url=run.get_portal_url(),
    )


if __name__ == "__main__":
    serve(make)
