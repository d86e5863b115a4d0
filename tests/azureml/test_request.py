"""What is asked of Azure ML for a job, held by a file for each case, and what makes two jobs one."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_azureml import snapshot
from snakemake_executor_plugin_azureml.errors import AzureMLError, find_secrets
from snakemake_executor_plugin_azureml.job_request import (
    Target,
    check_no_secrets,
    environment_of,
    make_request,
)
from snakemake_executor_plugin_azureml.settings import ExecutorSettings
from snakemake_executor_plugin_azureml.snakemake_jobs import portable_command
from tests.support.needs import require

GOLDEN = Path(__file__).parents[1] / "golden" / "azureml"
SETTINGS = ExecutorSettings(
    subscription="00000000-0000-0000-0000-000000000001",
    resource_group="research",
    workspace="experiments",
    compute="cpu-cluster",
    image="registry.example.com/training:1",
)
TARGET = Target(
    rule="train",
    wildcards={"run": "wide"},
    outputs=("az://work/p/results/wide/model.bin",),
    prefix="az://work/p",
)
COMMAND = (
    "python -m snakemake --snakefile 'Snakefile' --target-jobs 'train:run=wide' --allowed-rules train "
    "--cores all --attempt 1 --force-use-threads --rerun-triggers mtime code --mode 'remote'"
)
MOUNT = {"mounts": "STORE=store"}
# Settings, resources and further arguments of each case.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "one-node": ({}, {"nodes": 1, "runtime": 90, "mem_mb": 4000}, {}),
    "two-nodes-pytorch": (
        {"mounts": "STORE=store/main", "node_wait_s": 300},
        {"nodes": 2, "azureml_compute": "gpu-cluster", "shm_size": "16g"},
        {},
    ),
    "two-nodes-mpi-per-rank": (
        {"mounts": "STORE=lake:store/main", "follower_command": "nvidia-smi dmon"},
        {"nodes": 2, "azureml_processes_per_node": 4, "azureml_distribution": "mpi"},
        {"variables": {"NCCL_DEBUG": "INFO"}},
    ),
    "two-nodes-v1": (
        {"sdk": "v1", "mounts": "STORE=store/main", "environment": "training:3", "image": None},
        {"nodes": 2, "azureml_priority": 3, "docker_args": "--ulimit memlock=-1"},
        {},
    ),
    "serverless": (
        {
            "tags": "team=vision cost-centre=12",
            "identity": "managed:12345678-9abc-def0-1234-56789abcdef0",
            "compute": None,
        },
        {
            "azureml_instance_type": "Standard_NC24ads_A100_v4",
            "azureml_priority": "high",
            "docker_args": "--ulimit memlock=-1",
        },
        {"attempt": 2},
    ),
}


def request_of(settings=None, resources=None, *, command=COMMAND, target=TARGET, **changes):
    owner = replace(SETTINGS, **(settings or {}))
    arguments = {
        "snapshot": "0123456789abcdef",
        "environment": environment_of(owner, {}),
        "variables": {},
        "workflow": "snakemake_workflow_12345678",
        "attempt": 1,
        **changes,
    }
    return make_request(owner, target, resources or {}, command=command, **arguments)


@pytest.mark.parametrize("case", CASES)
def test_requests(case, golden):
    settings, resources, changes = CASES[case]
    golden(GOLDEN / f"{case}.json", request_of(settings, resources, **changes).as_json())


@pytest.mark.parametrize("case", CASES)
def test_what_the_sdk_sends(case, golden):
    """The bodies that the SDKs themselves make of the requests."""
    settings, resources, changes = CASES[case]
    request = request_of(settings, resources, **changes)
    body = body_v1(request) if settings.get("sdk") == "v1" else body_v2(request)
    golden(GOLDEN / f"{case}.body.json", json.dumps(body, indent=2, sort_keys=True) + "\n")


def body_v2(request):
    try:
        from azure.ai.ml._restclient.arm_ml_service._utils.model_base import SdkJSONEncoder
        from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

        from snakemake_executor_plugin_azureml import v2
    except ModuleNotFoundError as error:
        require(False, f"needs azure-ai-ml ({error}); install the extra azureml")
    job = v2.build_job(request, code="azureml:code:1", environment="azureml:environment:1")
    rest = to_rest_job_object(job)
    return json.loads(json.dumps(rest, cls=SdkJSONEncoder, exclude_readonly=True))


SHOWN_V1 = (
    "target", "framework", "communicator", "maxRunDurationSeconds", "nodeCount", "priority", "docker",
    "mpi", "pytorch", "dataReferences", "command", "environmentVariables",
)  # fmt: skip


def body_v1(request):
    try:
        from azureml._execution._commands import _serialize_run_config_to_dict
        from azureml.core import Environment
        from azureml.core.script_run_config import get_run_config_from_script_run

        from snakemake_executor_plugin_azureml import v1_sdk
    except ModuleNotFoundError as error:
        require(False, f"needs azureml-core ({error}); install the extra azureml")
    config = v1_sdk.build_run(request, GOLDEN, Environment("environment"))
    run = get_run_config_from_script_run(config)
    return {
        key: value for key, value in _serialize_run_config_to_dict(run).items() if key in SHOWN_V1
    }


def test_the_command_holds_the_job_and_the_follower_command():
    words = request_of({"follower_command": "top -b"}).command.split()
    assert base64.b64decode(words[-1]).decode() == COMMAND
    at = words.index("--follower-command")
    assert base64.b64decode(words[at + 1]).decode() == "top -b"


def test_the_name_says_what_is_made_and_nothing_else():
    assert request_of().name == request_of({"sdk": "v1"} | MOUNT, {"nodes": 4}, attempt=3).name
    assert request_of().numbered(12).name == f"{request_of().stem}-12"
    others = [
        replace(TARGET, rule="test"),
        replace(TARGET, wildcards={"run": "deep"}),
        replace(TARGET, outputs=("az://other/p/results/wide/model.bin",)),
        replace(TARGET, prefix="az://other/p", outputs=()),
    ]
    assert len({request_of(target=target).stem for target in [TARGET, *others]}) == 5
    assert replace(TARGET, rule="_é" * 60).stem.isascii()
    assert len(replace(TARGET, rule="x" * 300).stem) < 64


def test_the_code_is_what_two_controllers_agree_on():
    reordered = COMMAND.replace("mtime code", "code mtime").replace("--attempt 1", "--attempt 2")
    same = [
        request_of(command=reordered),
        request_of(attempt=3),
        request_of(command=COMMAND + " --unneeded-temp-files a b"),
        request_of({"tags": "team=vision"}),
    ]
    assert {request.code for request in same} == {request_of().code}
    others = [
        request_of(snapshot="other"),
        request_of(command=COMMAND.replace("wide", "deep")),
        request_of({"image": "registry.example.com/training:2"}),
        request_of(MOUNT),
        request_of(MOUNT, {"nodes": 2}),
        request_of(variables={"THREADS": "2"}),
    ]
    assert len({request.code for request in [request_of(), *others]}) == len(others) + 1


def test_the_environment_is_named_by_what_is_in_it():
    names = {
        environment_of(replace(SETTINGS, image=image), read).name
        for image in ("a:1", "a:2")
        for read in ({}, {"lock": "x==1"}, {"lock": "x==2"}, {"conda_file": "name: x"})
    }
    assert len(names) == 8
    assert environment_of(SETTINGS, {}) == environment_of(SETTINGS, {})
    registered = environment_of(replace(SETTINGS, image=None, environment="training"), {})
    assert (registered.name, registered.version, registered.image) == ("training", "", "")


def test_a_secret_never_leaves_in_a_request():
    key = "Zm9vYmFyYmF6cXV4Zm9vYmFy=="
    secrets = find_secrets({"STORE": f"AccountName=a;AccountKey={key};"}, ["STORE"])
    leaks = {
        "command": ({}, {}, f"{COMMAND} --config key={key}"),
        "tags": ({"tags": f"note=x{key}"}, {}, COMMAND),
        "docker_args": ({}, {"docker_args": f"-e KEY={key}"}, COMMAND),
    }
    for place, (settings, resources, command) in leaks.items():
        request = request_of(settings, resources, command=command)
        with pytest.raises(AzureMLError) as error:
            check_no_secrets(request, command, secrets)
        assert f"the {place} of job" in str(error.value)
        assert "variable STORE[0]" in str(error.value)
        assert key not in str(error.value)
    check_no_secrets(request_of(variables={"STORE": key}), COMMAND, secrets)  # as the user asked
    assert key not in repr(request_of(variables={"STORE": key}))


def test_the_command_does_not_name_this_machines_folder():
    command = f"{COMMAND} --directory '/home/me/a project' --shared-fs-usage 'none'"
    assert portable_command(command, "/home/me/a project").split() == [
        *COMMAND.split(), "--shared-fs-usage", "'none'",
    ]  # fmt: skip
    assert portable_command(command, None) == command


def write(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def test_the_snapshot_is_the_code_alone(tmp_path):
    source = tmp_path / "project"
    write(source, {
        "Snakefile": "rule a:", "scripts/a.py": "1", ".gitignore": "data/\n*.tmp\n!keep.tmp\n",
        "data/big": "x", "a.tmp": "x", "keep.tmp": "x", ".snakemake/log": "x", "store/shard": "x",
        "results/model": "x", "logs/a.log": "x", ".git/config": "x", ".venv/bin/python": "x",
        "scripts/__pycache__/a.pyc": "x", ".env": "KEY=1", "scripts/results/kept.py": "1",
    })  # fmt: skip
    taken = snapshot.take_snapshot(source, tmp_path / "to")
    found = {p.relative_to(taken.folder).as_posix() for p in taken.folder.rglob("*") if p.is_file()}
    assert found == {
        ".amlignore", ".gitignore", "Snakefile", "keep.tmp", "scripts/a.py", "scripts/results/kept.py",
    }  # fmt: skip
    again = snapshot.take_snapshot(source, tmp_path / "to")
    assert again == taken
    write(source, {"scripts/a.py": "2"})
    assert snapshot.take_snapshot(source, tmp_path / "to").digest != taken.digest
    assert (taken.folder / "scripts/a.py").read_text() == "1"  # no edit reaches a running workflow


def test_an_amlignore_counts_in_the_place_of_a_gitignore(tmp_path):
    write(tmp_path, {
        ".gitignore": "a.txt", ".amlignore": "b.txt\n!/results/\n", "a.txt": "", "b.txt": "",
        "results/table.csv": "", "store/x": "",
    })  # fmt: skip
    assert list(snapshot.code_files(tmp_path)) == [".gitignore", "a.txt", "results/table.csv"]


def test_a_link_is_followed_and_ends(tmp_path):
    write(tmp_path, {"project/Snakefile": "", "library/a.py": "1"})
    (tmp_path / "project/library").symlink_to(tmp_path / "library")
    (tmp_path / "project/loop").symlink_to(tmp_path / "project")
    assert list(snapshot.code_files(tmp_path / "project")) == ["Snakefile", "library/a.py"]


def test_too_much_code_is_refused_with_its_biggest_folders(tmp_path, monkeypatch):
    write(tmp_path, {f"many/{number}": "x" for number in range(12)})
    write(tmp_path, {"big/a": "x" * 4000, "Snakefile": ""})
    monkeypatch.setattr(snapshot, "MAX_FILES", 10)
    with pytest.raises(AzureMLError) as error:
        snapshot.take_snapshot(tmp_path, tmp_path / ".snakemake")
    assert "0.0 MB in 14 files" in str(error.value)
    assert "the biggest: many/ (0.0 MB in 12 files), " in str(error.value)
    monkeypatch.setattr(snapshot, "MAX_FILES", 100)
    monkeypatch.setattr(snapshot, "MAX_BYTES", 3000)
    with pytest.raises(
        AzureMLError, match=r"the biggest: big/ .*; list files that are not code in "
    ):
        snapshot.take_snapshot(tmp_path, tmp_path / ".snakemake")
