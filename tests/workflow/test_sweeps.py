"""Studies by the real Snakemake: killed and continued, and with a trial that fails by itself."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.processes import wait_until
from tests.support.workspace import SNAKEMAKE, Workspace

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


def shardline(workspace: Workspace, *arguments: str) -> str:
    command = [str(SNAKEMAKE.with_name("shardline")), *arguments]
    done = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True, check=True)
    return done.stdout


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
    process = subprocess.Popen(
        killed.command(), cwd=killed.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: bool(killed.matching(f"results/studies/*/{after}")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed.snakemake("--unlock")
    done = killed.snakemake("--rerun-incomplete")
    assert done.returncode == 0, done.stdout
    assert "Nothing to be done" in killed.snakemake().stdout
    found = json.loads(shardline(killed, "verify", "--deep", "--json"))
    assert [one["problems"] for one in found] == [[]] * len(found)
    assert {one["kind"] for one in found} >= {"study", "run"}
    (summary,) = killed.matching("results/studies/*/study-*.json")
    behind = json.loads(shardline(killed, "lineage", str(summary), "--json"))["actions"]
    assert {one.partition("/")[0] for one in behind} >= {"propose", "train_trial", "train"}
    whole = proposals(killed)
    for file in killed.matching("results/studies"):
        file.rename(killed.path / "earlier")
    done = killed.snakemake()  # all runs are sealed, so nothing is trained
    assert done.returncode == 0, done.stdout
    assert proposals(killed) == whole
    trials = json.loads(shardline(killed, "ls", "--study", "lr", "--json"))
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
    trials = json.loads(shardline(workspace, "ls", "--study", "width", "--json"))
    assert [one["state"] for one in trials] == ["failed", "done", "done"]
    assert "13 is no width" in trials[0]["failure"]
    assert len(workspace.matching("results/runs/*/evaluations/*.json")) == 1
    assert json.loads(shardline(workspace, "gc", "--json"))["items"] == []
    page = workspace.the("results/report/index.html").read_text()
    assert "Its held-out score is not evaluated" in page
    best = json.loads(shardline(workspace, "best", "width", "--json"))["row"]
    config = yaml.safe_load((workspace.path / "config/config.yaml").read_text())
    workspace.configure(config, [row, best])
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    key = workspace.identity("width-best")
    rules = {path.parent.name for path in (workspace.path / "logs").glob(f"*/{key}*.log")}
    assert rules == {"evaluate"}, "the trial has trained this run"
    page = workspace.the("results/report/index.html").read_text()
    assert "Its held-out score, evaluated once as width-best" in page
