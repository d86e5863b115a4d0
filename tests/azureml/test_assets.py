"""Data assets, by the unmodified SDK on the emulated service."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from snakemake_executor_plugin_azureml.assets import variables_of
from snakemake_executor_plugin_azureml.options import Mount
from snakemake_executor_plugin_azureml.settings import ExecutorSettings
from tests.azureml.emulator import AzureMLEmulator

PROGRAM = """
import json, sys
from snakemake_executor_plugin_azureml.assets import register_folder
from snakemake_executor_plugin_azureml.errors import AzureMLError

try:
    print(json.dumps(register_folder(**json.loads(sys.argv[1]))))
except AzureMLError as error:
    print(json.dumps({"error": str(error)}))
"""
FOLDER = {
    "mount": "STORE", "path": "datasets/digits-1", "name": "digits", "version": "1f6a8e3b5c7d",
    "description": "1,797 rows", "tags": {"rows": "1797"},
}  # fmt: skip


@pytest.fixture(scope="module")
def service(start_azureml: Callable[..., Any]) -> Any:
    """An emulator without blob storage."""
    return start_azureml(nodes=1, azurite=False)


@pytest.fixture
def register(service: AzureMLEmulator) -> Callable[..., dict[str, str]]:
    """Register on the submitting machine, where the mount is this folder of the datastore."""

    def run(mount: str = "mine", **changes: Any) -> dict[str, str]:
        settings = ExecutorSettings(
            subscription=service.subscription,
            resource_group=service.resource_group,
            workspace=service.workspace,
        )
        store = Mount(variable="STORE", datastore=service.default_datastore, path=mount)
        there = [store] if mount else []
        answer = service.login.run(
            "python", "-c", PROGRAM, json.dumps({**FOLDER, **changes}),
            env={**service.environment, **variables_of(settings, there)},
        )  # fmt: skip
        told: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
        return told

    return run


def put(service: AzureMLEmulator) -> list[str]:
    """Return what was made of the asset."""
    return [r.path for r in service.requests if r.method == "PUT" and "/data/digits/" in r.path]


def test_a_folder_is_registered_once(service, register):
    first = register()
    assert (first["name"], first["version"]) == ("digits", "1f6a8e3b5c7d")
    uri = f"/datastores/{service.default_datastore}/paths/mine/datasets/digits-1/"
    assert first["path"].startswith("azureml://subscriptions/")
    assert first["path"].endswith(uri)
    kept = service.state.assets["data", "digits", "1f6a8e3b5c7d"]["properties"]
    assert (kept["dataType"], kept["tags"]) == ("uri_folder", {"rows": "1797"})
    assert register() == first
    assert len(put(service)) == 1


def test_another_folder_under_the_same_version_is_refused(service, register):
    register()
    told = register("elsewhere")["error"]
    assert "data asset digits:1f6a8e3b5c7d exists with the folder azureml://" in told
    assert "paths/elsewhere/datasets/digits-1/; archive it" in told


def test_what_the_service_gets_wrong_for_a_moment_is_waited_for(service, register):
    service.fail("PUT .*/data/other/", "drop")
    service.fail("GET .*/data/other/", "500", times=6)
    assert register(name="other")["name"] == "other"
    assert service.faults_left() == []


def test_without_a_workspace_or_its_mount_it_says_what_is_missing(register, monkeypatch):
    assert register("")["error"].startswith("STORE_URI is not set, so the data asset digits")
