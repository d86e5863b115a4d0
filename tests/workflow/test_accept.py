"""An earlier training taken over in a real pipeline: nothing is trained again, and the report says so."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workspace import REPOSITORY, Workspace

ROW = {"name": "run", "dataset": "table", "model": "linear", "devices": 2, "trainer.max_epochs": 1}
REASON = "the penalty is too small to matter"


def shardline(workspace: Workspace, *arguments: str, code: int = 0) -> str:
    command = str(Path(sys.executable).with_name("shardline"))
    done = subprocess.run(
        [command, *arguments], cwd=workspace.path, text=True, capture_output=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


@pytest.mark.rotating
def test_an_accepted_training_is_evaluated_and_reported_and_not_trained_again(tiny):
    workspace = tiny(ROW)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    earlier = workspace.identity("run")
    steps = ("--after-steps", "10", "--profile", str(REPOSITORY / "profiles/local"))
    tiny({**ROW, "optim.lr": 0.011})
    told = shardline(workspace, "accept", "run", "--reason", REASON, "--yes", *steps, code=1)
    assert re.search(r"\d came out otherwise \(train_loss at step \d", told), told
    assert not workspace.matching("results/runs/<run>/model.safetensors")
    tiny({**ROW, "optim.weight_decay": 1e-9})
    told = shardline(workspace, "accept", "run", "--reason", REASON, "--yes", *steps)
    assert "optim.weight_decay 0.0 -> 1e-09" in told
    assert not list(workspace.path.glob("store/work/*-first-steps"))
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
    assert record["accepted"]["from"] == earlier
    assert record["accepted"]["reason"].startswith(f"{REASON} (the first 10 steps, trained again")
    assert REASON in (workspace.path / "results/report/index.html").read_text()
    assert "none with problems" in shardline(workspace, "verify")
    shardline(workspace, "gc", "--delete", "--yes")
    assert f"accepted from {earlier}" in shardline(workspace, "verify", "run")
    crate = json.loads((workspace.path / "results/report/ro-crate-metadata.json").read_text())
    assert any(item["@id"].endswith("/accepted.json") for item in crate["@graph"])
    assert "every number" in shardline(workspace, "replay", "run")
