"""In one table the longer run waits for the shorter one, continues it, and has the bits of a training from step 0."""

import json
from typing import Any

import pytest

from tests.support.workspace import REPOSITORY, Workspace

ROW = {"dataset": "table", "model": "mlp", "devices": 2}
SHORT = {**ROW, "name": "short", "trainer.max_epochs": 2}
LONG = {**ROW, "name": "long", "trainer.max_epochs": 4}


FRAIL = """
from pathlib import Path

import torch

from shardline.models import Classifier


class Frail(Classifier):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.net = torch.nn.Linear(*feature_shape, num_classes)

    def forward(self, features):
        return self.net(features)

    def on_train_epoch_start(self):
        if self.current_epoch == 2 and Path("broken").exists():
            raise RuntimeError("the disk of the cluster is away")
"""


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
    lineage = workspace.shardline("lineage", "results/latest/long/model.safetensors")
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
    assert "none with problems" in workspace.shardline("verify", "--deep")
    # which begins at step 0
    again = workspace.shardline("rerun", "long", "--profile", str(REPOSITORY / "profiles/local"))
    assert "the same weights to the last bit" in again


@pytest.mark.rotating
@pytest.mark.slow
def test_a_longer_run_continues_what_a_failed_shorter_run_has_saved(tiny):
    rows = [
        {**one, "devices": 1, "model": "frail:Frail", "trainer.max_epochs": epochs}
        for one, epochs in ((LONG, 4), (SHORT, 3))
    ]
    workspace = tiny(*rows)
    workspace.write("frail.py", FRAIL)
    broken = workspace.write("broken", "")
    failed = workspace.snakemake("--keep-going")
    assert failed.returncode != 0, failed.stdout
    report = json.loads((workspace.path / "results/report/report.json").read_text())
    causes = {one["names"][0]: one["cause"] for one in report["outcomes"]}
    assert causes["long"] == "the training waited for short, to continue it, and short failed"
    assert "the disk of the cluster is away" in causes["short"]
    assert "Training long" not in failed.stdout
    broken.unlink()
    model = f"results/runs/{workspace.identity('long')}/model.safetensors"
    done = workspace.snakemake(model)
    assert done.returncode == 0, done.stdout
    long = record(workspace, "long")
    assert long["continued"]["run"] == workspace.identity("short")
    step = long["continued"]["step"]
    assert long["training"]["resumed_step"] == step == long["training"]["steps"] // 2
    assert f"long continues short ({workspace.identity('short')}) from its step {step}: " in (
        workspace.the("logs/train/<long>.log").read_text()
    )
    assert not workspace.matching("results/runs/<short>/model.safetensors")
