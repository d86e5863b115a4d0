"""The service through azureml-core, which has a process of its own.

azureml-core waits for some answers without a limit, and at import it takes settings from variables and adds
handlers to the root logger. `v1_sdk` changes both by patches that hold for a whole process, which is
therefore not Snakemake's.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from snakemake_executor_plugin_azureml.child_process import ChildProcess
from snakemake_executor_plugin_azureml.client import Job
from snakemake_executor_plugin_azureml.request import JobRequest
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

_LISTED_FROM = 3


def make(
    settings: ExecutorSettings, *, code: Path, workflow: str, pause: Callable[[], None]
) -> "ClientV1":
    """Return a client of the workspace that the settings name; starts its process."""
    sdk = ChildProcess(
        "snakemake_executor_plugin_azureml.v1_sdk", settings=settings, code=code, workflow=workflow
    )
    return ClientV1(sdk, pause)


class ClientV1:
    """`Client` by calls of `v1_sdk.Sdk`."""

    def __init__(self, sdk: ChildProcess, pause: Callable[[], None]) -> None:
        self._sdk = sdk
        self._pause = pause

    def submit(self, request: JobRequest) -> Job:
        """Create the job, and its tags with a second request."""
        job: Job = self._sdk.call("submit", request)
        return job

    def find(self, name: str) -> Job | None:
        """Return the job of this name, None if there is none."""
        job: Job | None = self._sdk.call("find", name)
        return job

    def status(self, names: Collection[str]) -> dict[str, Job]:
        """Return the jobs: the newest of the workflow from a list, the rest one by one."""
        found: dict[str, Job] = {}
        if len(names) >= _LISTED_FROM:
            self._pause()
            found |= self._sdk.call("listed", frozenset(names))
        for name in names:
            if name not in found:
                self._pause()
                if (job := self._sdk.call("look_up", name)) is not None:
                    found[name] = job
        return found

    def reason(self, name: str) -> str:
        """Return the error of the run."""
        return str(self._sdk.call("reason", name))

    def ended(self, name: str) -> datetime | None:
        """Return when the run ended."""
        time: datetime | None = self._sdk.call("ended", name)
        return time

    def logs(self, name: str) -> dict[str, str]:
        """Return the last part of each log."""
        tails: dict[str, str] = self._sdk.call("logs", name)
        return tails

    def cancel(self, name: str) -> None:
        """Ask for the job's end."""
        self._sdk.call("cancel", name)
