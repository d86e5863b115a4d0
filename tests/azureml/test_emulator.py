"""The emulator of Azure ML does what the service does, as both unmodified SDKs see it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.emulator.contract import describe
from tests.azureml.emulator.definitions import FILE, check, derive
from tests.azureml.emulator.jobs import JobSpec
from tests.azureml.emulator.variables import MpiAddress, place_variables
from tests.azureml.emulator.workspace import ServiceError
from tests.support.rotation import rotating
from tests.support.workspace import REPOSITORY

GOLDEN = REPOSITORY / "tests/golden/azureml"
RECORDED = REPOSITORY / "tests/data/environments"
SDKS = ["v1", "v2"]
SUBMISSION = {"v1": "POST .*/snapshotrun$", "v2": "PUT .*/jobs/[^/]+$"}
TWO_BY_FOUR: dict[str, Any] = {"nodes": 2, "processes_per_node": 4}
STATUS = {"v1": "GET .*/runs/[^/]+$", "v2": "GET .*/jobs/[^/]+$"}

# Says what it sees, meets the other ranks at rank 0's address, and leaves files.
REPORT = """
import json, os, pathlib, socket, sys
seen = {"environment": dict(os.environ), "host": socket.gethostname(), "folder": os.getcwd()}
seen["files"] = sorted(str(path) for path in pathlib.Path().rglob("*"))
hidden = [pathlib.Path(path) for path in sys.argv[1:]]
seen["hidden"] = [str(path) for path in hidden if path.is_dir() and any(path.iterdir())]
rank, world = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
address = os.environ.get("MASTER_ADDR", "127.0.0.1"), 7000
if rank == "0":
    with socket.create_server(("", 7000)) as server:
        seen["met"] = sorted(server.accept()[0].recv(9).decode() for _ in range(world - 1))
else:
    while True:
        try:
            with socket.create_connection(address) as meeting:
                meeting.sendall(rank.encode())
            break
        except ConnectionRefusedError:
            pass
pathlib.Path(os.environ["STORE"], f"rank-{rank}").write_text(rank)
pathlib.Path("outputs", f"rank-{rank}").write_text(rank)
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Outcome:
    """How something went for a user of an SDK."""

    status: str
    logs: dict[str, str]
    errors: list[str]


@pytest.fixture(scope="module")
def service(start_azureml: Callable[..., Any]) -> Any:
    """An emulator without blob storage."""
    return start_azureml(nodes=4, azurite=False)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A project to submit, with results of its own, which no node may see."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "report.py").write_text(REPORT)
    (folder / "helper").mkdir()
    (folder / "helper/data.txt").write_text("data")
    return folder


@pytest.fixture
def use(service: AzureMLEmulator, code: Path) -> Callable[..., Outcome]:
    """Run something through an SDK on the submitting machine."""

    def run(sdk: str, name: str, command: str, **order: Any) -> Outcome:
        words = {"name": name, "code": str(code), "command": command, **order}
        answer = service.login.run(
            "python", "-m", "tests.azureml.emulator.client", sdk, json.dumps(words),
            cwd=code.parent, env=service.environment, timeout=600,
        )  # fmt: skip
        return Outcome(**json.loads(answer.stdout.splitlines()[-1]))

    return run


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


@pytest.mark.parametrize("sdk", SDKS)
def test_a_job_on_one_node(
    sdk: str,
    service: AzureMLEmulator,
    use: Callable[..., Outcome],
    code: Path,
    golden: Callable[[Path, str], None],
) -> None:
    asked = len(service.requests)
    name, mount = f"one-{sdk}", f"shared/{sdk}"
    outcome = use(
        sdk,
        name,
        # Long enough for the client to ask more than once, else fewer kinds of requests are made.
        f"python report.py {code} {service.folder} {REPOSITORY}/results; sleep 1",
        mount=mount,
        environment={"GIVEN": "yes"},
        tags={"purpose": "test"},
    )
    assert outcome.errors == []
    assert outcome.status == "Completed"
    seen = json.loads(outcome.logs["user_logs/std_log.txt"])
    assert seen["files"] == ["helper", "helper/data.txt", "logs", "outputs", "report.py"]
    assert seen["hidden"] == []
    assert seen["environment"]["GIVEN"] == "yes"
    assert seen["environment"]["AZUREML_RUN_ID"] == name
    job = service.jobs[name]
    assert seen["host"] == job.nodes[0] != "login"
    assert job.tags == {"purpose": "test"}
    assert [status for status, _ in job.history] == [
        "Preparing", "Queued", "Starting", "Running", "Finalizing", "Completed",
    ]  # fmt: skip
    assert (service.datastore() / mount / "rank-0").read_text() == "0"
    assert outcome.logs["outputs/rank-0"] == "0"
    requests = describe(service.requests[asked:]).replace(str(code), "CODE")
    for changing in (str(service.folder), str(code.parent), str(REPOSITORY)):
        requests = requests.replace(changing, "FOLDER")
    golden(GOLDEN / f"requests_{sdk}.txt", requests)


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("distribution", ["mpi", *rotating("pytorch")])
def test_two_processes_on_each_of_two_nodes(
    distribution: str, sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    mpi = "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
    mpi += "MASTER_ADDR=${AZ_BATCH_MASTER_NODE%:*} "
    name = f"four-{distribution}-{sdk}"
    outcome = use(
        sdk,
        name,
        f"{mpi if distribution == 'mpi' else ''}python report.py",
        nodes=2,
        processes_per_node=2,
        distribution=distribution,
        mount=name,
    )
    assert (outcome.status, outcome.errors) == ("Completed", [])
    logs = [json.loads(outcome.logs[f"user_logs/std_log_process_{rank}.txt"]) for rank in range(4)]
    assert logs[0]["met"] == ["1", "2", "3"]
    hosts = [log["host"] for log in logs]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert sorted(path.name for path in (service.datastore() / name).iterdir()) == [
        "rank-0", "rank-1", "rank-2", "rank-3",
    ]  # fmt: skip
    ranks = {name for name in outcome.logs if name.startswith("outputs/")}
    assert ranks == {f"outputs/rank-{rank}" for rank in range(4)}


@pytest.mark.rotating
@pytest.mark.parametrize("sdk", SDKS)
def test_a_cancelled_job_ends_after_its_processes_had_time_to(
    sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    command = "trap 'echo told; exit 9' TERM; echo up; sleep 300 & wait"
    outcome = use(sdk, f"cancel-{sdk}", command, then="cancel")
    assert (outcome.status, outcome.errors) == ("Canceled", [])
    assert outcome.logs["user_logs/std_log.txt"] in ("up\ntold\n", "")  # cancelled at once: ""


@pytest.mark.rotating
@pytest.mark.parametrize("sdk", SDKS)
def test_a_failed_process_fails_the_job_and_ends_the_others(
    sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    service.ways.straggler_grace_s = 0.5
    command = "if [ $RANK = 1 ]; then echo broken; exit 3; else sleep 300; fi"
    outcome = use(sdk, f"fail-{sdk}", command, nodes=2, distribution="pytorch")
    assert outcome.status == "Failed"
    assert outcome.logs["user_logs/std_log_process_1.txt"] == "broken\n"
    job = service.jobs[f"fail-{sdk}"]
    assert "status code 3" in job.error
    assert "user_logs/std_log_process_1.txt" in job.error


@pytest.mark.rotating
@pytest.mark.parametrize("sdk", SDKS)
def test_what_fails_for_a_moment_leaves_one_job(
    sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    service.fail(SUBMISSION[sdk], "429", retry_after=1)
    service.fail(SUBMISSION[sdk], "drop-before")
    service.fail(SUBMISSION[sdk], "drop")
    service.fail(STATUS[sdk], "500")
    service.fail(STATUS[sdk], "503")
    service.fail(STATUS[sdk], "slow", seconds=1)
    before, name = len(service.jobs), f"faults-{sdk}"
    outcome = use(sdk, name, "true")
    assert (outcome.status, outcome.errors) == ("Completed", [])
    assert service.faults_left() == []
    assert len(service.jobs) == before + 1
    assert service.jobs[name].attempts == 1


@pytest.mark.rotating
@pytest.mark.parametrize("sdk", SDKS)
def test_an_expired_token_is_refused_once(
    sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    service.fail(STATUS[sdk], "expired-token")
    outcome = use(sdk, f"token-{sdk}", "true")
    assert outcome.status == "Completed"
    assert len(outcome.errors) == 1
    assert "ExpiredAuthenticationToken" in outcome.errors[0]


@pytest.mark.rotating
@pytest.mark.parametrize("sdk", SDKS)
def test_a_preempted_job_starts_again_under_its_name(
    sdk: str, service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    name = f"preempt-{sdk}"
    service.fail(f"^{name}$", "preempt", seconds=0.2)
    command = (
        "echo $(ls $STORE); if [ -e $STORE/first ]; then exit 0; fi; touch $STORE/first; sleep 300"
    )
    outcome = use(
        sdk, name, f"export STORE; {command}", mount=name, compute=service.low_priority_compute
    )
    assert outcome.status == "Completed"
    assert outcome.logs["user_logs/retry_001/std_log.txt"] == "first\n"
    job = service.jobs[name]
    assert job.attempts == 2
    statuses = [status for status, _ in job.history]
    assert statuses == [
        "Preparing", "Queued", "Starting", "Running", "Queued", "Starting", "Running",
        "Finalizing", "Completed",
    ]  # fmt: skip


@pytest.mark.rotating
def test_a_node_that_never_starts_keeps_the_job_running(
    service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    service.fail("^missing$", "missing-node", node=1)
    outcome = use("v2", "missing", "true", nodes=2, distribution="pytorch", then="cancel")
    assert outcome.status == "Canceled"
    assert len(service.jobs["missing"].nodes) == 1


@pytest.mark.rotating
def test_a_node_without_power_fails_the_job(
    service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    service.ways.straggler_grace_s = 0.5
    service.fail("^dead$", "dead-node", node=1, seconds=0.2)
    outcome = use("v2", "dead", "sleep 300", nodes=2, distribution="pytorch")
    assert outcome.status == "Failed"
    assert "on node 1" in service.jobs["dead"].error


@pytest.mark.rotating
def test_a_job_ends_at_its_time_limit(
    service: AzureMLEmulator, use: Callable[..., Outcome]
) -> None:
    outcome = use("v2", "limit", "sleep 300", timeout_s=1)
    assert outcome.status == "Canceled"
    assert service.jobs["limit"].warning == "The job ran longer than its limit of 1 s."


@pytest.mark.rotating
def test_jobs_wait_for_nodes_and_a_name_is_taken_once(
    service: AzureMLEmulator, use: Callable[..., Outcome], tmp_path: Path
) -> None:
    wait = "until [ -e $STORE/go ]; do sleep 0.05; done"
    order: dict[str, Any] = {"nodes": 3, "mount": "queue", "then": "leave"}
    first = use("v2", "queue-1", f"export STORE; {wait}", **order)
    second = use("v2", "queue-2", f"export STORE; {wait}", **order)
    service.wait_for("queue-1", "Running")
    assert (service.jobs["queue-2"].status, second.status) == ("Queued", "Queued")
    again = use("v2", "queue-2", "something else", **order)
    assert "A job with this name already exists" in again.errors[0]
    (service.datastore() / "queue/go").touch()
    assert service.wait_for("queue-1").status == "Completed"
    assert service.wait_for("queue-2").status == "Completed"
    assert first.errors == []


@pytest.mark.rotating
def test_a_job_reads_and_writes_blobs(azureml: AzureMLEmulator, code: Path, tmp_path: Path) -> None:
    container = azureml.container("data")
    (code / "blob.py").write_text(
        "import os\n"
        "from azure.storage.blob import BlobClient\n"
        "connection = os.environ['AZURITE_CONNECTION_STRING']\n"
        f"blob = BlobClient.from_connection_string(connection, {container!r}, 'answer')\n"
        "blob.upload_blob(b'forty-two')\n"
    )
    order = {"name": "blobs", "code": str(code), "command": "python blob.py"}
    azureml.login.run(
        "python", "-m", "tests.azureml.emulator.client", "v2", json.dumps(order),
        cwd=tmp_path, env=azureml.environment, timeout=600,
    )  # fmt: skip
    assert azureml.jobs["blobs"].status == "Completed", azureml.jobs["blobs"].logs
    assert azureml.blob_storage is not None
    assert azureml.blob_storage.blobs(container) == {"answer": 9}


@pytest.mark.rotating
def test_nothing_is_left(azure_sdks: None, tmp_path: Path) -> None:
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    before = children()
    folder = tmp_path / "emulator"
    folder.mkdir()
    with AzureMLEmulator(folder, azurite=False) as service:
        job = spec(name="left", command="sleep 300 & sleep 300", nodes=2, distribution="Mpi")
        service.state.submit(job, tags={}, properties={})
        service.wait_for("left", "Running")
        namespaces = {service.login.pid}
    assert service.jobs["left"].is_over
    assert children() == before
    assert not any(psutil.pid_exists(pid) for pid in namespaces)
    own = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line
    ]
    assert own == []
