"""A training script in an image of its own, which holds Python alone: checked, trained, asked to stop."""

import json
import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.support.container_engine import BASE, RUN_ARGS
from tests.support.processes import wait_until
from tests.support.workspace import TINY_CONFIG, Workspace

SCRIPT = """
import json, os, pathlib, time
from shardline_io.heartbeat_memory import HeartbeatMemory
from shardline_io.batches import ask

memory = HeartbeatMemory(int(os.environ["SHARDLINE_HEARTBEAT"]))
memory.heed_stops()
ask("shard", 0)  # raises where its rank does not answer
work = pathlib.Path(os.environ["SHARDLINE_WORK"])
mark = work / f"asked-{os.environ['RANK']}"
first = not mark.exists()
mark.touch()
for _ in range(1000 if first else 1):
    if memory.stop_reason():
        raise SystemExit(75)
    time.sleep(0.1)
header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
text = len(header).to_bytes(8, "little") + header + bytes(4)
if os.environ["RANK"] == "0":
    pathlib.Path(os.environ["SHARDLINE_OUTPUT"], "model.safetensors").write_bytes(text)
"""


@pytest.mark.rotating
def test_a_script_runs_in_an_image_without_shardline_and_hears_a_stop(engine, tmp_path):
    digest = engine.podman("image", "inspect", BASE, "--format", "{{.Digest}}").strip()
    name = BASE.partition(":")[0]
    reference = f"{name}@{digest}"
    workspace = Workspace(tmp_path)
    row = {"name": "own", "dataset": "digits", "model": "script: train.py", "devices": 2}
    config = {
        **TINY_CONFIG,
        "environments": {"own": {"image": reference}},
        "image": {"run_with": "podman", "run_args": [*RUN_ARGS, *_numpy()]},
        "runtime": {"threads_per_rank": 1},
    }
    workspace.write("train.py", SCRIPT)
    nowhere = {**config, "environments": {"own": {"image": f"{name}@sha256:{'0' * 64}"}}}
    workspace.configure(nowhere, [{**row, "environment": "own"}])
    _check_is_refused(workspace, "cannot be started", "log in to it with the tool itself")
    workspace.configure(config, [{**row, "environment": "own"}])
    workspace.write("train.py", f"import tensorflow\n{SCRIPT}")
    _check_is_refused(workspace, "own: train.py imports tensorflow, but", "lacks it")

    workspace.write("train.py", SCRIPT)
    process = subprocess.Popen(
        workspace.command(),
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    wait_until(lambda: len(list(tmp_path.glob("store/work/*/checkpoints/asked-*"))) > 1, process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    output = process.communicate(timeout=120)[0]
    assert process.returncode != 0, output

    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert list(load_file(workspace.the("results/runs/<own>/model.safetensors"))) == ["w"]
    workspace.the("results/envs/*/environment.json").unlink()  # earlier versions wrote none
    again = workspace.snakemake()
    assert "Nothing to be done" in again.stdout, again.stdout
    provenance = json.loads(workspace.the("results/runs/<own>/provenance.json").read_text())
    assert provenance["training"]["environment"] == {"kind": "image", "image": reference}
    ends = [one["end"] for one in provenance["attempt_log"]]
    assert ends == ["stopped", "sealed"], provenance["attempt_log"]
    identity = json.loads(workspace.the("results/runs/<own>/identity.json").read_text())
    assert identity["environment"] == {"kind": "image", "python": "", "packages": {"image": digest}}


def _numpy() -> list[str]:
    """Return options that mount this Python's NumPy, which the base has not: its Python is of the same version."""
    origin = find_spec("numpy").origin
    package = Path(origin).parent
    there = "/usr/lib/python3/dist-packages"
    folders = [package, package.with_name("numpy.libs")]
    return [f"--volume={folder}:{there}/{folder.name}:ro" for folder in folders]


def _check_is_refused(workspace: Workspace, *texts: str) -> None:
    """Hold that a command says why the image does not fit, before it makes data."""
    done = workspace.snakemake()
    assert done.returncode != 0, done.stdout
    assert all(text in done.stdout for text in texts), done.stdout
    assert not workspace.matching("store/datasets/*")
