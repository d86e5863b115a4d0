"""A real array of six trainings: one is preempted and fails later, one has itself queued again."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.pipeline import Pipeline
from tests.support.slurm.started import Started
from tests.support.workspace import TINY_CONFIG, Workspace

# Slow until a file `hurry` exists, so that tasks are struck in the middle.
MODEL = """
import time
from pathlib import Path

from shardline.training.models.mlp import MLP


class Slow(MLP):
    def __init__(self, feature_shape, num_classes, number=0):
        super().__init__(feature_shape, num_classes)
        self.number = number

    def training_step(self, batch, batch_idx):
        if Path(f"fail-{self.number}").exists():
            raise ValueError("this one cannot be trained")
        end = time.monotonic() + 5
        while not Path("hurry").exists() and time.monotonic() < end:
            time.sleep(0.1)
        return super().training_step(batch, batch_idx)
"""
NAMES = [f"run{number}" for number in range(1, 7)]


def write_project(path: Path, cluster: SlurmCluster) -> Pipeline:
    pipeline = Pipeline(Workspace(path), cluster)
    runtime = {"launcher": "srun", "checkpoint": {"every_steps": 2}, "log_every_steps": 10}
    pipeline.configure(runtime=runtime)
    rows = [
        {
            "name": name, "dataset": "table", "model": "slow:Slow", "nodes": 2, "devices": 1,
            "trainer.max_epochs": 10, "model_args.number": number,
        }
        for number, name in enumerate(NAMES, start=1)
    ]  # fmt: skip
    pipeline.workspace.configure(TINY_CONFIG, rows)
    pipeline.workspace.write("slow.py", MODEL)
    profile = path / "profile" / "profile.yaml"
    asked = {**yaml.safe_load(profile.read_text()), "slurm-array-jobs": "train", "keep-going": True}
    asked["set-resources"]["train"]["mem_mb"] = 100
    profile.write_text(yaml.safe_dump(asked))
    return pipeline


@pytest.mark.rotating
def test_six_runs_are_one_array_and_each_ends_by_itself(start_slurm, tmp_path: Path):
    cluster = start_slurm(nodes=2, cpus=6)
    pipeline = write_project(tmp_path / "project", cluster)
    on_login = ("--executor", "local", "--cores", "2", "--until", "seal_dataset", "resolve_run")
    done = pipeline.run(*on_login)
    assert done.returncode == 0, done.stdout
    runs = {name: pipeline.workspace.identity(name) for name in NAMES}

    array = Started(pipeline, "--until", "train", "--verbose")
    array.wait_until(lambda: all(map(array.saves, runs.values())), "a state of each run")
    (number,) = set(re.findall(r"SLURM job ID (\d+)", array.told()))
    tasks = {job: name for name, (_, job) in array.jobs().items()}
    jobs = {name: array.attempts(run)[-1]["job"] for name, run in runs.items()}
    assert sorted(jobs.values()) == sorted(tasks), "each run has a task of its own"
    last = next(name for name in NAMES if jobs[name] == number)
    failing = next(name for name in NAMES if name != last)

    array.requeue(tasks[jobs[failing]])
    array.wait_for_states("its next start", RUNNING=6)
    pipeline.workspace.write(f"fail-{failing[-1]}", "")
    array.wait_for_states("a failure", FAILED=1)
    # the ID of the last task is that of the array, and names all tasks for Slurm
    array.requeue(tasks[number], "scancel", "--signal=USR1")
    others = [state for task, (state, _) in array.jobs().items() if task != tasks[number]]
    assert sorted(others) == ["FAILED", *["RUNNING"] * 4]
    pipeline.workspace.write("hurry", "")
    assert array.end() == 1

    assert array.told().count("Submitted array job") == 1
    assert "this one cannot be trained" in array.told()
    ends = {name: [one["end"] for one in array.attempts(run)] for name, run in runs.items()}
    broken = {name: ends.pop(name) for name in (failing, last)}
    assert broken[failing][1:] == ["failed"], "requeued by Slurm, and failed"
    assert broken[last][1:] == ["sealed"], "requeued itself"
    assert [*ends.values()] == [["sealed"]] * 4
    sealed = {path.parent.name for path in pipeline.path.glob("results/runs/*/model.safetensors")}
    assert sealed == {runs[name] for name in NAMES if name != failing}
    kept = {path.name for path in pipeline.path.glob("logs/slurm/rule_train/*")}
    assert kept == {f"{tasks[jobs[failing]]}.log"}
