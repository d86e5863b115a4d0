"""`shardline drill` on a real Slurm: a preemption and a time limit are nothing to the training."""

import json

import pytest

from tests.support.rotation import rotating
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import SHARDLINE, Workspace


@pytest.fixture(scope="module")
def pipeline(slurm, tmp_path_factory):
    pipeline = Pipeline(Workspace(tmp_path_factory.mktemp("drill")), slurm)
    pipeline.configure(runtime={"launcher": "srun"})
    return pipeline


@pytest.mark.parametrize("name", rotating("timeout", "preempt"))
def test_a_job_that_slurm_ends_early_goes_on_by_itself(pipeline, name):
    done = pipeline.cluster.login.run(
        *SHARDLINE, "drill", name, "--profile", str(pipeline.path / "profile"), "--json",
        "--nodes", "2", "--devices", "1", "--timeout-s", "560",
        cwd=pipeline.path, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = json.loads(done.stdout)["outcomes"]
    assert one["compared"] == {"weights": True, "optimizer": True, "ledger": True}
    assert one["commands"] == 1, "Slurm retries, not the user"
    assert one["attempts"] == 2
    assert one["steps_lost"] == 0, "the training was told in time, and saved"
