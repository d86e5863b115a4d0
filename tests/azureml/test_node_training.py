"""A training through the node program: two nodes that share nothing but the mounted store."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shardline.ledger import read_ledger
from tests.azureml.node_jobs import NODES, Job
from tests.azureml.test_node import machines  # noqa: F401  # a fixture
from tests.support.rotation import rotating
from tests.support.wheels import add_wheel
from tests.support.workspace import TINY_CONFIG, Workspace

ROW = {"name": "run", "dataset": "table", "model": "mlp", "trainer.max_epochs": 2}
RUNTIME = {
    "oversubscribe": True, "ledger": True, "log_every_steps": 1, "threads_per_rank": 1,
    "rendezvous_timeout_s": 60,
    "stop_grace_s": 25,
}  # fmt: skip
WAYS = {
    "agents-pytorch": ("azureml-v2-pytorch-2x4", 2, 1),
    "agents-mpi": ("azureml-v1-mpi-2x4", 2, 1),
    "ranks-pytorch": ("azureml-v1-pytorch-2x4", 2, 2),
    "ranks-mpi": ("azureml-v1-mpi-2x4", 2, 2),
}


def configure(path: Path, nodes: int, devices: int, launcher: str) -> Workspace:
    workspace = Workspace(path)
    # the machines' names mean no address, by which gloo would find the interface
    interface = "eth0" if launcher == "azureml" else ""
    workspace.configure(
        {**TINY_CONFIG, "runtime": {**RUNTIME, "launcher": launcher, "interface": interface}},
        [{**ROW, "nodes": nodes, "devices": devices}],
    )
    return workspace


def outcome(results: Workspace, store: Path) -> tuple[dict, list]:
    (ledger,) = store.glob("work/*/ledger")
    lines = results.the("results/runs/*/metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return read_ledger(ledger), [(r["step"], r["train_loss"]) for r in records if "train_loss" in r]


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory) -> tuple[dict, list]:
    local = configure(tmp_path_factory.mktemp("local"), 1, 4, "torchrun")
    done = local.snakemake("--until", "train", "--cores", "4")
    assert done.returncode == 0, done.stdout
    return outcome(local, local.path / "store")


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["agents-pytorch", "ranks-mpi", *rotating("agents-mpi", "ranks-pytorch")]
)
def test_two_nodes_give_what_one_machine_gives(machines, tmp_path, on_one_machine, way):  # noqa: F811
    job = Job(machines, tmp_path)
    for name in NODES:  # the code snapshot is on all
        configure(tmp_path / name, 2, 2, "azureml")
    # as a job on a cluster is started, which knows how many nodes there may be
    command = [
        *Workspace(tmp_path / "node-a").command("--until", "train", "--cores", "2"),
        "--jobs",
        "1",
    ]
    command = [word for word in command if word != str(tmp_path)]
    job.start(shlex.join(command), WAYS[way], "--mount", f"SHARDLINE_STORE={job.shared}", wait_s=60)
    codes = job.codes(900)
    logs = "".join(path.read_text() for path in tmp_path.glob("node-*/logs/train/*.log"))
    assert set(codes) == {0}, job.logs() + logs
    assert outcome(Workspace(tmp_path / "node-a"), job.shared) == on_one_machine
    provenance = Workspace(tmp_path / "node-a").the("results/runs/*/provenance.json")
    ranks = json.loads(provenance.read_text())["world"]["ranks"]
    assert [rank["host"] for rank in ranks] == ["node-a", "node-a", "node-b", "node-b"]
    # followers have what they were sent, and write nothing beside the store
    left = {path.name for path in (tmp_path / "node-b").rglob("*") if path.is_file()}
    assert left == {"config.yaml", "runs.tsv", "run.json", "manifest.json"}


SCRIPT = """
import numpy
import safetensors.numpy
import shardline_io as io
import tinynet

total = sum(float(batch["features"].sum()) for batch in io.train())
io.save_model({"w": numpy.array([total, float(tinynet.VERSION)], numpy.float32)})
"""


@pytest.mark.slow
@pytest.mark.rotating
def test_each_node_builds_the_environment_of_a_script(machines, tmp_path):  # noqa: F811
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    add_wheel(wheels, "tinynet", "1.5")
    packages = ("numpy==2.4.6", "safetensors==0.8.0")  # the machines reach no index
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*download, str(wheels), *packages], check=True)
    job = Job(machines, tmp_path)
    for name in NODES:
        workspace = configure(tmp_path / name, 2, 2, "azureml")
        config = yaml.safe_load((workspace.path / "config/config.yaml").read_text())
        config["environments"] = {"own": {"venv": "own.lock"}}
        row = {**ROW, "model": "script: train.py", "nodes": 2, "devices": 2, "environment": "own"}
        workspace.configure(config, [row])
        workspace.write("train.py", SCRIPT)
        workspace.write("own.lock", "\n".join(["tinynet==1.5", *packages]))
    command = [
        *Workspace(tmp_path / "node-a").command("--until", "train", "--cores", "2"),
        "--jobs",
        "1",
    ]
    command = [word for word in command if word != str(tmp_path)]
    job.start(
        shlex.join(command), WAYS["agents-pytorch"], "--mount", f"SHARDLINE_STORE={job.shared}",
        wait_s=60, UV_FIND_LINKS=str(wheels), PIP_NO_INDEX="1", XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    codes = job.codes(900)
    logs = "".join(path.read_text() for path in tmp_path.glob("node-*/logs/train/*.log"))
    assert set(codes) == {0}, job.logs() + logs
    provenance = Workspace(tmp_path / "node-a").the("results/runs/*/provenance.json")
    used = json.loads(provenance.read_text())["training"]["environment"]
    assert used["packages"].keys() == {"numpy", "safetensors", "tinynet"}
