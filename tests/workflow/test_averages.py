"""Averages and an ensemble of trained rows, through the real pipeline and the commands that read their results."""

import json
import re
import subprocess

import pytest

from tests.support.workspace import SHARDLINE

MODEL = """
import torch
from shardline.models import Classifier


class Normed(Classifier):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(*feature_shape, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
            torch.nn.Linear(8, num_classes),
        )

    def forward(self, features):
        return self.net(features)
"""
MEMBER = {"dataset": "table", "model": "mypkg.models:Normed", "devices": 1}
ROWS = [  # before their members
    {**MEMBER, "name": "again", "average": "[run:mean, run:a]"},
    {**MEMBER, "name": "mean", "average": "{of: [run:a, run:b], greedy: validation}", "devices": 2},
    {**MEMBER, "name": "both", "ensemble": '["run:a", "run:b"]', "devices": 2},
    {**MEMBER, "name": "a", "seed": 1},
    {**MEMBER, "name": "b", "seed": 2},
]


@pytest.mark.rotating
@pytest.mark.slow
def test_rows_are_averaged_evaluated_predicted_and_reported(tiny) -> None:
    workspace = tiny(*ROWS, predictions={"guess": {"run": "both", "dataset": "table"}})
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/models.py", MODEL)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout, again.stdout

    def record(name: str, file: str):
        return json.loads(workspace.the(f"results/runs/<{name}>/{file}").read_text())

    found = {name: record(name, "provenance.json")["training"] for name in ("mean", "both")}
    ids = [workspace.identity(name) for name in "ab"]
    for one in found.values():
        assert [member["run"] for member in one["combined"]["members"]] == ids
        assert one["steps"] == 0
    assert found["mean"]["combined"]["how"] == "greedy"
    assert found["both"]["combined"]["how"] == "probabilities"
    assert record("again", "provenance.json")["training"]["combined"]["batch_norms"] == 1
    evaluated = record("both", "evaluations/*.json")
    assert evaluated["headline"]["metric"] == "accuracy"
    workspace.the("results/runs/<both>/predictions/*.parquet")
    workspace.shardline("verify")
    told = workspace.shardline("why", "mean")
    assert "run" in told
    exported = subprocess.run(
        [*SHARDLINE, "export", "both", "--to", "safetensors"], cwd=workspace.path, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert "is an ensemble, which has no weights of its own" in exported.stdout + exported.stderr
    workspace.shardline("export", "mean", "--to", "safetensors")
    # a member of another seed makes all that depend on it stale, and nothing else
    rows = [{**row, "seed": 3} if row["name"] == "b" else row for row in ROWS]
    config = workspace.path / "config/config.yaml"
    text = config.read_text()
    workspace.configure({"runs": "config/runs.tsv"}, rows)
    config.write_text(text)
    planned = workspace.snakemake("--dry-run").stdout
    trained = re.findall(r"Job \d+: Training (\w+)", planned)
    assert sorted(trained) == ["again", "b", "both", "mean"], planned
