"""A study on an emulated Azure ML, with results in its storage: a preempted trial, and one that a row has trained."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardline.ledger import read_ledger
from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.pipeline import NUM_STEPS, Pipeline
from tests.support.workspace import SNAKEMAKE

pytestmark = [pytest.mark.slow, pytest.mark.rotating]
ROW = {"nodes": 1, "devices": 1, "optim.lr": 0.01}
SWEEP = {
    "base": "study", "space": {"optim.lr": [0.1, 0.01, 0.001]}, "sampler": "grid", "parallel": 2,
}  # fmt: skip


def shardline(run: Pipeline, *arguments: str) -> Any:
    command = [str(SNAKEMAKE.with_name("shardline")), *arguments, "--json"]
    done = subprocess.run(command, cwd=run.path, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_each_trial_is_a_job_that_survives_preemption_and_its_run_comes_back(
    start_azureml: Callable[..., AzureMLEmulator], azurite_installed: None, tmp_path: Path
):
    service = start_azureml(nodes=2, azurite=True)
    run = Pipeline(tmp_path / "project", service, "study", "v2")
    service.container(run.name)
    run.hurry()
    low = {"azureml_compute": service.low_priority_compute}
    run.configure(train=low, **ROW)
    run.run()
    (run.store / "hurry").unlink()

    run.configure(train=low, sweeps={"lr": SWEEP}, **ROW)
    run.start()
    run.wait_for_checkpoint()
    (job,) = [one for one in run.jobs("train_trial") if one.status == "Running"][:1]
    service.preempt(job.name)
    run.wait_until(lambda: job.attempts == 2, "second attempt")
    run.hurry()
    assert run.end() == 0, run.story()
    jobs = run.jobs("train_trial")
    assert {one.status for one in jobs} == {"Completed"}
    assert sorted(one.attempts for one in jobs) == [1, 1, 2]
    assert "Nothing to be done" in run.run()

    empty = Pipeline(tmp_path / "other/project", service, run.name, "v2")
    empty.configure(train=low, sweeps={"lr": SWEEP}, **ROW)
    assert "Nothing to be done" in empty.run()
    for checkout in (run, empty):
        trials = shardline(checkout, "ls", "--study", "lr")
        assert [one["linked"] for one in trials] == [False, True, False]
        assert [one["seconds"] is None for one in trials] == [False, True, False]
        folders = [checkout.path / "results/runs" / key for one in trials for key in one["runs"]]
        assert len(folders) == 3
        for folder in folders:
            assert (folder / "model.safetensors").stat().st_size > 0
            problems = shardline(checkout, "verify", folder.name)
            assert [one["problems"] for one in problems] == [[]] * len(problems)
    for work in run.store.glob("work/*/ledger"):
        assert [*read_ledger(work)] == [*range(1, NUM_STEPS + 1)]
    row = shardline(run, "best", "lr")["row"]
    assert float(row["optim.lr"]) in SWEEP["space"]["optim.lr"]
