"""A training script in an image of its own, which holds Python and nothing of Shardline: trained, and asked to stop."""

import json
import os
import signal
import subprocess

import pytest
from safetensors.numpy import load_file

from tests.support.container_engine import BASE, RUN_ARGS
from tests.support.processes import wait_until
from tests.support.workspace import TINY_CONFIG, Workspace

# The base has no NumPy, so the script writes its weights and reads the heartbeat memory itself.
SCRIPT = """
import json, os, pathlib, time
from shardline_io.heartbeat_memory import HeartbeatMemory
from shardline_io.requests import ask

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
    reference = f"{BASE.partition(':')[0]}@{digest}"
    workspace = Workspace(tmp_path)
    row = {"name": "own", "dataset": "digits", "model": "script: train.py", "devices": 2}
    config = {
        **TINY_CONFIG,
        "environments": {"own": {"image": reference}},
        "image": {"run_with": "podman", "run_args": RUN_ARGS},
        "runtime": {"threads_per_rank": 1},
    }
    workspace.configure(config, [{**row, "environment": "own"}])
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
    provenance = json.loads(workspace.the("results/runs/<own>/provenance.json").read_text())
    assert provenance["training"]["environment"] == {"kind": "image", "image": reference}
    ends = [one["end"] for one in provenance["attempt_log"]]
    assert ends == ["stopped", "sealed"], provenance["attempt_log"]
    identity = json.loads(workspace.the("results/runs/<own>/identity.json").read_text())
    assert identity["environment"] == {"kind": "image", "python": "", "packages": {"image": digest}}
