"""The interface to the service that both SDKs implement, and its data."""

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from snakemake_executor_plugin_azureml.errors import AzureMLError
from snakemake_executor_plugin_azureml.job_request import CODE_TAG, JobRequest
from snakemake_executor_plugin_azureml.options import SDKS
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

CREDENTIAL_VARIABLE = "SNAKEMAKE_AZUREML_CREDENTIAL"
# From this number of jobs on, listing all jobs costs fewer requests than one request per job.
_LISTED_FROM = 3


class RemoteState(Enum):
    """The meaning of a job's status for the workflow."""

    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "being cancelled"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return self in (RemoteState.COMPLETED, RemoteState.FAILED, RemoteState.CANCELED)


_STATES = {
    "running": RemoteState.RUNNING,
    "finalizing": RemoteState.RUNNING,
    "notresponding": RemoteState.RUNNING,
    "cancelrequested": RemoteState.CANCELLING,
    "completed": RemoteState.COMPLETED,
    "finished": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "canceled": RemoteState.CANCELED,
}


@dataclass(frozen=True, kw_only=True)
class RemoteJob:
    """A job as the service reports it.

    Attributes:
        status: the service's own term, such as `Preparing`.
        url: page of the job in Azure ML studio, or an empty string.
        code: digest of the job's code (the tag `snakemake_code`), or an empty string.
    """

    name: str
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    code: str = ""

    @property
    def state(self) -> RemoteState:
        """State of the job; any unknown status counts as waiting."""
        return _STATES.get(self.status.lower(), RemoteState.WAITING)

    @property
    def runs(self) -> str:
        """Digest of the job's code, from its tag or else its variable."""
        return self.tags.get(CODE_TAG) or self.code


def status_of(
    names: Collection[str],
    listed: Callable[[Collection[str]], dict[str, RemoteJob]],
    look_up: Callable[[str], RemoteJob | None],
    pause: Callable[[], None],
) -> dict[str, RemoteJob]:
    """Return the existing jobs: the newest from a list, the others one by one."""
    found = listed(names) if len(names) >= _LISTED_FROM else {}
    for name in names:
        if name not in found:
            pause()
            if (job := look_up(name)) is not None:
                found[name] = job
    return found


class Client(Protocol):
    """The requests of the executor to the service; every call may raise the SDK's errors."""

    def submit(self, request: JobRequest) -> RemoteJob:
        """Create the job, and its code and environment if they are missing."""
        ...

    def find(self, name: str) -> RemoteJob | None:
        """Return the job with this name, or None if no job has it."""
        ...

    def status(self, names: Collection[str]) -> dict[str, RemoteJob]:
        """Return the existing ones of these jobs, in as few requests as the SDK allows."""
        ...

    def reason(self, name: str) -> str:
        """Return the service's reason for a job's failure, or an empty string."""
        ...

    def ended(self, name: str) -> datetime | None:
        """Return the end time of a job; None if the service does not report it."""
        ...

    def logs(self, name: str) -> dict[str, str]:
        """Return the last part of each of the job's log files, by name."""
        ...

    def cancel(self, name: str) -> None:
        """Ask the service to end the job, without waiting for the end."""
        ...


def make_client(
    settings: ExecutorSettings, *, code: Path, workflow: str, pause: Callable[[], None]
) -> Client:
    """Return a client with the SDK of the settings; imports that SDK.

    Args:
        code: folder that is sent as the code of every job.
        workflow: tag of all jobs of the workflow.
        pause: function to call before each status request.

    Raises:
        AzureMLError: the SDK is not installed.
    """
    try:
        module = importlib.import_module(f"snakemake_executor_plugin_azureml.{settings.sdk}")
        client: Client = module.make(settings, code=code, workflow=workflow, pause=pause)
    except ModuleNotFoundError as error:
        raise AzureMLError(
            f"azureml-sdk={settings.sdk} needs {SDKS[settings.sdk]}, of which {error.name} cannot "
            f"be imported; install {SDKS[settings.sdk]} and azure-identity, or choose the other SDK"
        ) from error
    return client


def make_credential() -> Any:
    """Return azure-identity's default credential, or the credential of the test hook.

    Raises:
        AzureMLError: the hook's variable does not contain a function's name.
    """
    hook = os.environ.get(CREDENTIAL_VARIABLE)
    if not hook:
        from azure.identity import DefaultAzureCredential

        return DefaultAzureCredential()
    module, _, factory = hook.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, ValueError) as error:
        raise AzureMLError(
            f"{CREDENTIAL_VARIABLE}={hook!r} is expected to be module:function of a credential; "
            f"correct it, or unset it to use azure-identity's default ({error})"
        ) from error
