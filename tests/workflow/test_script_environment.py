"""A training script in an environment of its own under the real Snakemake: built before data, or a sentence."""

import json

import pytest
import yaml

from tests.support.wheels import add_wheel
from tests.support.workspace import Workspace

SCRIPT = """
import json
import numpy
import safetensors.numpy
import shardline_io as io
import tinynet

for module in ("shardline", "torch"):
    try:
        __import__(module)
    except ImportError:
        continue
    raise SystemExit(f"{module} is there")
total = sum(float(batch["features"].sum()) for batch in io.train())
io.write_evaluation({"accuracy": 0.5}, 8)
io.save_model({"w": numpy.array([total, float(tinynet.VERSION)], numpy.float32)})
"""


@pytest.mark.rotating
def test_a_script_runs_in_its_own_environment_which_is_there_before_data(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    add_wheel(folder, "tinynet", "1.5")
    add_wheel(folder, "tinynet", "1.6")
    env = {"UV_FIND_LINKS": str(folder)}
    workspace = tiny(
        {
            "name": "own",
            "dataset": "digits",
            "model": "script: train.py",
            "devices": 2,
            "environment": "own",
        }
    )
    with_environment(workspace)
    workspace.write("train.py", SCRIPT)
    lock(workspace, "tinynet==1.5\n")

    failed = workspace.snakemake(env=env)
    assert failed.returncode != 0
    assert "train.py imports safetensors, but" in failed.stdout, failed.stdout
    assert not workspace.matching("store/datasets/*"), "no data was cut"

    lock(workspace, "tinynet==1.5\nsafetensors==0.8.0\n")
    done = workspace.snakemake(env=env)
    assert done.returncode == 0, done.stdout
    provenance = json.loads(workspace.the("results/runs/<own>/provenance.json").read_text())
    used = provenance["training"]["environment"]
    assert used["kind"] == "venv"
    assert used["packages"].keys() == {"numpy", "safetensors", "tinynet"}
    assert "Nothing to be done" in workspace.snakemake(env=env).stdout

    lock(workspace, "tinynet==1.6\nsafetensors==0.8.0\n")
    dry = workspace.snakemake("--dry-run", env=env)
    assert "build_environment" in dry.stdout, dry.stdout
    assert "build_shards" not in dry.stdout


def with_environment(workspace: Workspace) -> None:
    path = workspace.path / "config/config.yaml"
    config = yaml.safe_load(path.read_text())
    config["environments"] = {"own": {"venv": "own.lock"}}
    path.write_text(yaml.safe_dump(config))


def lock(workspace: Workspace, pins: str) -> None:
    workspace.write("own.lock", f"numpy==2.4.6\n{pins}")
