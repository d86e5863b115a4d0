"""The emulator of Azure ML: its variables and definitions are the service's, and its nodes see what a node would.

That both unmodified SDKs find in it the service that they know is shown by the whole pipelines of the other files.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.emulator.definitions import FILE, check, derive
from tests.azureml.emulator.jobs import JobSpec
from tests.azureml.emulator.variables import MpiAddress, place_variables
from tests.azureml.emulator.workspace import ServiceError
from tests.support.workspace import REPOSITORY

RECORDED = REPOSITORY / "tests/data/environments"
TWO_BY_FOUR: dict[str, Any] = {"nodes": 2, "processes_per_node": 4}


def spec(**changes: Any) -> JobSpec:
    """Return a job of one process."""
    plain = JobSpec(
        name="train_1", sdk="v2", experiment="tests", display_name="", command="true",
        compute="cpu-cluster", nodes=1, processes_per_node=1, distribution=None, environment={},
        mounts=(), code={}, timeout_s=None, priority=0, shm_size="2g", definition={},
    )  # fmt: skip
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("recorded", "job", "node", "local_rank", "mpi_address"),
    [
        ("azureml-v1-mpi-2x4", spec(sdk="v1", distribution="Mpi", **TWO_BY_FOUR), 1, 1, "batch"),
        ("azureml-v1-pytorch-2x4", spec(sdk="v1", distribution="PyTorch", **TWO_BY_FOUR), 1, 2, "batch"),
        ("azureml-v2-mpi-1x4", spec(distribution="Mpi", processes_per_node=4), 0, 2, "batch"),
        ("azureml-v2-pytorch-2x4", spec(distribution="PyTorch", **TWO_BY_FOUR), 0, 3, "batch"),
        ("azureml-v2-mpi-2x1-localhost", spec(distribution="Mpi", nodes=2), 1, 0, "localhost"),
        ("azureml-mpi-2x1-master-ip", spec(distribution="Mpi", nodes=2), 1, 0, "master-ip"),
    ],
)  # fmt: skip
def test_the_variables_are_those_of_recorded_jobs(
    recorded: str, job: JobSpec, node: int, local_rank: int, mpi_address: MpiAddress
) -> None:
    lines = (RECORDED / f"{recorded}.env").read_text().splitlines()
    wanted = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    found = place_variables(
        replace(job, name=wanted["AZUREML_RUN_ID"]),
        node=node,
        local_rank=local_rank,
        addresses=["10.0.0.4", "10.0.0.5"][: job.nodes],
        mpi_address=mpi_address,
    )
    assert found == wanted


@pytest.mark.filterwarnings("ignore")  # the SDK's own
def test_the_definitions_are_those_of_the_installed_sdk(
    azure_sdks: None, golden: Callable[[Path, str], None]
) -> None:
    golden(FILE, derive())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": None}, "properties.command: None is not of type 'string'"),
        ({"enviromentId": "x"}, "Additional properties are not allowed ('enviromentId'"),
        ({"limits": {"jobLimitsType": "Command", "timeout": 600}}, "properties.limits"),
        ({"distribution": {"distributionType": "Ring"}}, "properties.distribution"),
    ],
)
def test_a_job_that_the_description_does_not_know_is_refused(
    change: dict[str, Any], message: str
) -> None:
    job = {"jobType": "Command", "command": "true", "environmentId": "/environments/e/versions/1"}
    check("JobBase", {"properties": job})
    with pytest.raises(ServiceError) as refused:
        check("JobBase", {"properties": {**job, **change}})
    assert message in str(refused.value)


@pytest.mark.rotating
def test_nodes_see_nothing_of_the_submitting_machine_and_nothing_is_left(azure_sdks, tmp_path):
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    before = children()
    folder, project = tmp_path / "emulator", tmp_path / "project"
    folder.mkdir()
    project.mkdir()
    (project / "result").touch()
    command = f"find {folder} {project} -mindepth 1 2>/dev/null; echo up; sleep 300 & sleep 300"
    with AzureMLEmulator(folder, azurite=False, hidden=(project,)) as service:
        left = spec(name="left", command=command, nodes=2, distribution="Mpi")
        service.state.submit(left, tags={}, properties={})
        job = service.wait_for("left", "Running")
        service.wait_until(
            lambda: list(job.logs.values()) == ["up\n"] * 2, lambda: str(job.logs), timeout_s=60
        )
        namespaces = {service.login.pid}
    assert job.is_over
    assert children() == before
    assert not any(psutil.pid_exists(pid) for pid in namespaces)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    assert [line for line in mounts if str(tmp_path) in line] == []
