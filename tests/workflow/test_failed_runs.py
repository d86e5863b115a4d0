"""Runs that fail beside others, or learn nothing: the report is there all the same, and names them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import torch
from shardline.models import Classifier

class Net(Classifier):
    def __init__(self, schema, **settings):
        super().__init__(schema, **settings)
        self.net = torch.nn.Linear(3, 3)

    def forward(self, features):
        return self.net(features)
"""
QUICK = {"trainer.max_epochs": 1, "devices": 1}
WILD = {"optim.name": "sgd", "optim.lr": "1e30"}  # which is sealed, and has learned nothing


def shardline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("shardline"), *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )


def outcomes(folder: Path) -> dict[str, dict]:
    document = json.loads((folder / "results/report/report.json").read_text())
    return {name: one for one in document.get("outcomes", ()) for name in one["names"]}


@pytest.mark.rotating
@pytest.mark.slow
def test_a_failed_run_is_in_the_report_and_tried_once(tiny):
    workspace = tiny(
        {"name": "wild", "dataset": "table", "model": "linear", **WILD, **QUICK},
        {"name": "bad", "dataset": "table", "model": "mypkg.models:Net", **QUICK},
    )
    workspace.write("mypkg/models.py", BROKEN)
    done = workspace.snakemake()
    assert done.returncode != 0, done.stdout
    assert "Report over 1 of 2 runs (1 failed): results/report/index.html" in done.stdout
    found = outcomes(workspace.path)["bad"]
    assert (found["state"], found["rule"]) == ("failed", "train")
    assert done.stdout.count(found["cause"].splitlines()[0]) == 1, "retries repeat nothing"
    assert (workspace.path / found["log"]).read_text().strip()
    warning = "the largest weight is "
    assert done.stdout.count(f"warning: {warning}") == 1
    page = (workspace.path / "results/report/index.html").read_text()
    assert warning in page
    assert "1 of 2 runs finished; 1 failed" in page
    listed = shardline(workspace.path, "ls").stdout
    assert "bad failed: " in listed
    assert f"wild warning: {warning}" in listed
    assert "failed in train" in shardline(workspace.path, "why", "bad").stdout

    rows = (workspace.path / "config/runs.tsv").read_text()
    workspace.write("config/runs.tsv", rows.replace("mypkg.models:Net", "mlp"))
    partial = (workspace.path / "results/report").resolve()
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert outcomes(workspace.path) == {}
    assert (workspace.path / "results/report").resolve() != partial
