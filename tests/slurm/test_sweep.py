"""A study on a real Slurm: each trial is a job, one is preempted, and one fails by its own fault."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.slurm.pipeline import Pipeline
from tests.support.slurm.started import Started
from tests.support.workspace import SHARDLINE, Workspace

# Slow until a file `hurry` exists, so that a trial is preempted in the middle.
MODEL = """
import time
from pathlib import Path

from shardline.training.models.mlp import MLP


class Own(MLP):
    def __init__(self, *arguments, hidden=8, **named):
        super().__init__(*arguments, hidden=hidden, **named)
        self.width = hidden

    def training_step(self, batch, batch_idx):
        if self.width == 13 and Path("hurry").exists():
            raise ValueError("13 is no width")
        end = time.monotonic() + 5
        while not Path("hurry").exists() and time.monotonic() < end:
            time.sleep(0.1)
        return super().training_step(batch, batch_idx)
"""
WIDTHS = [13, 4, 8, 16]


@pytest.mark.rotating
def test_a_study_with_a_preempted_and_a_failing_trial(start_slurm, tmp_path: Path):
    cluster = start_slurm(nodes=2, cpus=2)
    pipeline = Pipeline(Workspace(tmp_path / "project"), cluster)
    sweep = {
        "base": "run", "space": {"model_args.hidden": WIDTHS}, "sampler": "grid", "parallel": 4,
    }  # fmt: skip
    runtime = {"launcher": "srun", "checkpoint": {"every_steps": 2}}
    pipeline.configure(
        runtime=runtime, config={"sweeps": {"width": sweep}}, model="own:Own", devices=1,
        **{"trainer.max_epochs": 10},
    )  # fmt: skip
    pipeline.workspace.write("own.py", MODEL)
    profile = pipeline.path / "profile" / "profile.yaml"
    asked = yaml.safe_load(profile.read_text())
    asked["set-resources"]["train_trial"]["mem_mb"] = 100
    profile.write_text(yaml.safe_dump(asked))
    done = pipeline.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
    assert done.returncode == 0, done.stdout

    proposals = "results/studies/*/*/proposal.json"
    study = Started(pipeline, "--until", "seal_study")
    study.wait_until(lambda: len(pipeline.workspace.matching(proposals)) == 4, "four proposals")
    files = sorted(pipeline.workspace.matching(proposals), key=lambda path: int(path.parent.name))
    runs = [next(iter(json.loads(file.read_text())["runs"])) for file in files]
    study.wait_until(lambda: all(map(study.saves, runs)), "a state of each trial")
    jobs = {run: study.attempts(run)[-1]["job"] for run in runs}
    assert len({*jobs.values()}) == 4, "each trial has a job of its own"
    assert {job for _, job in study.jobs().values()} >= {*jobs.values()}
    struck = runs[1]
    study.requeue(jobs[struck])
    study.wait_for_states("its next start", RUNNING=4)
    pipeline.workspace.write("hurry", "")
    assert study.end() == 0, study.told()

    listed = cluster.login.run(*SHARDLINE, "ls", "--study", "width", "--json", cwd=pipeline.path)
    trials = json.loads(listed.stdout)
    assert [one["state"] for one in trials] == ["failed", "done", "done", "done"]
    assert "13 is no width" in trials[0]["failure"]
    attempts = {run: study.attempts(run) for run in runs}
    assert [len(attempts[run]) for run in runs] == [1, 2, 1, 1]
    assert [one["job"] for one in attempts[struck]] == [jobs[struck]] * 2, (
        "requeued, not resubmitted"
    )
    assert attempts[struck][1]["resumed_step"] > 0
    assert [attempts[run][-1]["end"] for run in runs] == ["failed", "sealed", "sealed", "sealed"]
