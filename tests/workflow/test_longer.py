"""In one table the longer run waits for the shorter one, continues it, and has the bits of a training from step 0."""

import json
from typing import Any

from tests.support.workspace import REPOSITORY, Workspace
from tests.workflow.test_accept import shardline

ROW = {"dataset": "table", "model": "mlp", "devices": 2}
SHORT = {**ROW, "name": "short", "trainer.max_epochs": 2}
LONG = {**ROW, "name": "long", "trainer.max_epochs": 4}


def record(workspace: Workspace, name: str) -> dict[str, Any]:
    path = workspace.the(f"results/runs/<{name}>/provenance.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_longer_run_continues_the_shorter_one_of_its_table(tiny):
    workspace = tiny(LONG, SHORT)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    short, long = (record(workspace, name) for name in ("short", "long"))
    step, continued = short["training"]["steps"], long["continued"]
    assert (continued["run"], continued["step"]) == (workspace.identity("short"), step)
    assert continued["identity"] == short["identity"]
    assert continued["device_hours"] > 0
    assert long["training"]["resumed_step"] == step
    assert [one.get("run") for one in long["attempt_log"]] == [workspace.identity("short"), None]
    assert f"long continues short ({workspace.identity('short')}) from its step {step}: " in (
        workspace.the("logs/train/<long>.log").read_text()
    )
    assert "Nothing to be done" in workspace.snakemake().stdout
    lineage = shardline(workspace, "lineage", "results/latest/long/model.safetensors")
    assert f"train/{workspace.identity('short')}" in lineage
    report = workspace.path / "results/report"
    assert f"run {workspace.identity('short')} from step {step}, which saved" in (
        (report / "index.html").read_text()
    )
    crate = json.loads((report / "ro-crate-metadata.json").read_text())
    states = [
        one
        for one in crate["@graph"]
        if one.get("name", "").startswith("Training checkpoint of run")
    ]
    assert [one["name"].rpartition(" ")[2] for one in states] == [str(step)]
    assert "none with problems" in shardline(workspace, "verify", "--deep")
    # which begins at step 0
    again = shardline(workspace, "rerun", "long", "--profile", str(REPOSITORY / "profiles/local"))
    assert "the same weights to the last bit" in again
