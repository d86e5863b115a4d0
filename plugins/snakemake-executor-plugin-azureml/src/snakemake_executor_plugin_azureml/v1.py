"""The service through azureml-core, in a separate process.

azureml-core waits for some answers without a limit. At import, it reads settings from variables and adds
handlers to the root logger. `v1_sdk` patches both for its whole process, so this process must not be
Snakemake's.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_azureml.child_process import ChildProcess
from snakemake_executor_plugin_azureml.client import RemoteJob, status_of
from snakemake_executor_plugin_azureml.settings import ExecutorSettings


def make(
    settings: ExecutorSettings, *, code: Path, workflow: str, pause: Callable[[], None]
) -> "ClientV1":
    """Return a client of the workspace in the settings; starts the client's process."""
    sdk = ChildProcess(
        "snakemake_executor_plugin_azureml.v1_sdk", settings=settings, code=code, workflow=workflow
    )
    return ClientV1(sdk, pause)


class ClientV1:
    """A `Client` that calls `v1_sdk.Sdk`."""

    def __init__(self, sdk: ChildProcess, pause: Callable[[], None]) -> None:
        self._sdk = sdk
        self._pause = pause

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of `v1_sdk.Sdk`; all methods but `status` have the same signature there."""
        return partial(self._sdk.call, name)

    def status(self, names: Collection[str]) -> dict[str, RemoteJob]:
        """Return the existing ones of these jobs."""
        return status_of(names, self._listed, self.look_up, self._pause)

    def _listed(self, names: Collection[str]) -> dict[str, RemoteJob]:
        self._pause()
        found: dict[str, RemoteJob] = self._sdk.call("listed", frozenset(names))
        return found
