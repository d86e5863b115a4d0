"""Studies by the real Snakemake: killed and continued, and with a trial that fails by itself."""

import json
from typing import Any

import pytest

from tests.support.workspace import Workspace

MODEL = """
from shardline.training.models.mlp import MLP


class Own(MLP):
    def __init__(self, *arguments, hidden=8, **named):
        super().__init__(*arguments, hidden=hidden, **named)
        self.width = hidden

    def training_step(self, batch, batch_idx):
        if self.width == 13:
            raise ValueError("13 is no width")
        return super().training_step(batch, batch_idx)
"""
ROW = {"name": "base", "dataset": "table", "model": "linear", "devices": 1, "trainer.max_epochs": 2}
RUNTIME = {"threads_per_rank": 1}
LR = {
    "base": "base", "space": {"optim.lr": {"log": [1e-4, 1e-1]}}, "sampler": "random", "trials": 4, "parallel": 2,
}  # fmt: skip


def proposals(workspace: Workspace) -> list[Any]:
    files = workspace.matching("results/studies/*/*/proposal.json")
    found = [json.loads(file.read_text()) for file in files]
    return [(one["settings"], one["runs"], one["told"]) for one in found]


# Each study, and the file after which the controller is killed.
KILLED: dict[str, tuple[dict[str, Any], str]] = {
    "random": ({}, "*/result-0.json"),
    "tpe": ({"sampler": "tpe", "parallel": 1}, "0/proposal.json"),
    "sobol": ({"sampler": "sobol", "parallel": {"0": 1, "2": 2}}, "2/proposal.json"),
    "grid": ({"sampler": "grid", "space": {"optim.lr": [0.1, 0.01, 0.001]}, "trials": 3}, "1/result-0.json"),
    "seeds": ({"seeds": 2, "trials": 2}, "0/result-1.json"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_study_continues_by_the_same_command_with_the_same_proposals(name, tiny):
    own, after = KILLED[name]
    killed = tiny(ROW, runtime=RUNTIME, sweeps={"lr": {**LR, **own}})
    killed.killed_and_continued(f"results/studies/*/{after}")
    found = json.loads(killed.shardline("verify", "--deep", "--json"))
    assert [one["problems"] for one in found] == [[]] * len(found)
    assert {one["kind"] for one in found} >= {"study", "run"}
    (summary,) = killed.matching("results/studies/*/study-*.json")
    behind = json.loads(killed.shardline("lineage", str(summary), "--json"))["actions"]
    assert {one.partition("/")[0] for one in behind} >= {"propose", "train_trial", "train"}
    whole = proposals(killed)
    for file in killed.matching("results/studies"):
        file.rename(killed.path / "earlier")
    done = killed.snakemake()  # all runs are sealed, so nothing is trained
    assert done.returncode == 0, done.stdout
    assert proposals(killed) == whole
    trials = json.loads(killed.shardline("ls", "--study", "lr", "--json"))
    assert [one["linked"] for one in trials] == [True] * len(trials)


@pytest.mark.slow
@pytest.mark.rotating
def test_a_trial_that_fails_by_itself_is_a_result_and_the_best_is_evaluated_once_it_is_a_row(tiny):
    grid = {"base": "base", "space": {"model_args.hidden": [13, 4, 16]}, "sampler": "grid"}
    row = {**ROW, "model": "own:Own"}
    workspace = tiny(row, runtime=RUNTIME, sweeps={"width": grid})
    workspace.write("own.py", MODEL)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    trials = json.loads(workspace.shardline("ls", "--study", "width", "--json"))
    assert [one["state"] for one in trials] == ["failed", "done", "done"]
    assert "13 is no width" in trials[0]["failure"]
    assert len(workspace.matching("results/runs/*/evaluations/*.json")) == 1
    assert json.loads(workspace.shardline("gc", "--json"))["items"] == []
    page = workspace.the("results/report/index.html").read_text()
    assert "Its held-out score is not evaluated" in page
    workspace.evaluated_best("width", row)
    page = workspace.the("results/report/index.html").read_text()
    assert "Its held-out score, evaluated once as width-best" in page
