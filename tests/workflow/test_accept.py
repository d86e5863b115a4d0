"""An earlier training taken over in a real pipeline: nothing is trained again, and the report says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Workspace

ROW = {"name": "run", "dataset": "table", "model": "linear", "devices": 1, "trainer.max_epochs": 1}
REASON = "the penalty is too small to matter"


def shardline(workspace: Workspace, *arguments: str) -> str:
    command = str(Path(sys.executable).with_name("shardline"))
    done = subprocess.run(
        [command, *arguments], cwd=workspace.path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_accepted_training_is_evaluated_and_reported_and_not_trained_again(tiny):
    workspace = tiny(ROW)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    earlier = workspace.identity("run")
    tiny({**ROW, "optim.weight_decay": 1e-9})
    told = shardline(workspace, "accept", "run", "--reason", REASON, "--yes")
    assert "optim.weight_decay 0.0 -> 1e-09" in told
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert "Training run" not in done.stdout
    assert "Evaluating run" in done.stdout
    assert "Nothing to be done" in workspace.snakemake().stdout
    run = workspace.the("results/latest/run").resolve()
    assert run.name == workspace.identity("run") != earlier
    assert (run / "model.safetensors").samefile(
        workspace.path / "results/runs" / earlier / "model.safetensors"
    )
    (record,) = json.loads((workspace.path / "results/report/report.json").read_text())["runs"]
    assert (record["accepted"]["from"], record["accepted"]["reason"]) == (earlier, REASON)
    assert REASON in (workspace.path / "results/report/index.html").read_text()
    assert "none with problems" in shardline(workspace, "verify")
    shardline(workspace, "gc", "--delete", "--yes")
    assert f"accepted from {earlier}" in shardline(workspace, "verify", "run")
    crate = json.loads((workspace.path / "results/report/ro-crate-metadata.json").read_text())
    assert any(item["@id"].endswith("/accepted.json") for item in crate["@graph"])
    assert "every number" in shardline(workspace, "replay", "run")
