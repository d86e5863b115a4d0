"""An earlier training taken over in a real pipeline; a training that is done again, and one that is removed."""

import json
import re
import shutil

import pytest

from tests.support.workspace import REPOSITORY

ROW = {"name": "run", "dataset": "table", "model": "linear", "devices": 2, "trainer.max_epochs": 1}
REASON = "the penalty is too small to matter"


@pytest.mark.rotating
def test_an_accepted_training_is_evaluated_and_reported_and_not_trained_again(tiny):
    workspace = tiny(ROW)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    earlier = workspace.identity("run")
    steps = ("--after-steps", "10", "--profile", str(REPOSITORY / "profiles/local"))
    tiny({**ROW, "optim.lr": 0.011})
    told = workspace.shardline("accept", "run", "--reason", REASON, "--yes", *steps, code=1)
    assert re.search(r"\d differ \(train_loss at step \d", told), told
    assert not workspace.matching("results/runs/<run>/model.safetensors")
    tiny({**ROW, "optim.weight_decay": 1e-9})
    told = workspace.shardline("accept", "run", "--reason", REASON, "--yes", *steps)
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
    assert "none with problems" in workspace.shardline("verify")
    workspace.shardline("gc", "--delete", "--yes")
    assert f"accepted from {earlier}" in workspace.shardline("verify", "run")
    crate = json.loads((workspace.path / "results/report/ro-crate-metadata.json").read_text())
    assert any(item["@id"].endswith("/accepted.json") for item in crate["@graph"])
    assert "every number" in workspace.shardline("replay", "run")


@pytest.mark.rotating
def test_a_run_is_trained_again_beside_its_result_and_after_its_removal(tiny):
    workspace = tiny(ROW)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    run = workspace.path / "results/runs" / workspace.identity("run")
    sealed = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    local = ("--profile", str(REPOSITORY / "profiles/local"))
    told = workspace.shardline("rerun", "run", *local)
    assert f"run ({run.name}): the same weights to the last bit" in told
    assert "none of " in told
    again = workspace.path / "results/reruns" / run.name / "1"
    assert json.loads((again / "provenance.json").read_text())["training"]["resumed_step"] == 0
    assert sealed == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert not list(workspace.path.glob("store/work/*-rerun-*"))
    shutil.rmtree(run)  # the finished training checkpoint stays
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    log = (workspace.path / f"logs/train/{run.name}.log").read_text()
    assert f"`shardline rerun {run.name}` trains the run again" in log
    assert "nothing was trained" in log
    workspace.shardline("rm", "run", "--delete", "--yes")
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert "nothing was trained" not in (workspace.path / f"logs/train/{run.name}.log").read_text()
    assert (run / "model.safetensors").read_bytes() == sealed[run / "model.safetensors"]
