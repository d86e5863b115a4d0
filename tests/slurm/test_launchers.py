"""The whole main job on two nodes, by every launcher, beside the same geometry on one machine."""

from pathlib import Path

import pytest

from tests.support.rotation import rotating
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace

# the test split is several blocks, so that ranks evaluate as well
ROW = {"trainer.max_epochs": 2, "evaluation.batch": 32}


@pytest.fixture(scope="module")
def by_srun(slurm, tmp_path_factory):
    """The whole main job, through `snakemake --profile`, one task for each rank."""
    pipeline = Pipeline(Workspace(tmp_path_factory.mktemp("srun")), slurm)
    pipeline.configure(runtime={"launcher": "srun"}, nodes=2, devices=2, **ROW)
    done = pipeline.run()
    assert done.returncode == 0, done.stdout
    return pipeline


@pytest.fixture(scope="module")
def on_one_machine(by_srun, tmp_path_factory):
    """The same samples on as many ranks of one node, by torchrun."""
    pipeline = by_srun.copy(tmp_path_factory.mktemp("local") / "project")
    runtime = {"launcher": "torchrun", "oversubscribe": True}
    pipeline.configure(runtime=runtime, nodes=1, devices=4, **ROW)
    done = pipeline.run("--executor", "local", "--cores", "2", "--until", "train")
    assert done.returncode == 0, done.stdout
    return pipeline


def test_the_whole_main_job(by_srun):
    assert by_srun.workspace.the("results/runs/*/evaluation.json")
    assert (by_srun.path / "results/report/index.html").exists()
    (log,) = by_srun.path.glob("logs/evaluate/*.log")
    assert "4 ranks, nodes=2 x devices=2" in log.read_text()
    again = by_srun.run()
    assert "Nothing to be done" in again.stdout


def test_ranks_are_where_the_plan_says(by_srun):
    world = by_srun.provenance()["world"]
    assert (world["world_size"], world["nodes"], world["launcher"]) == (4, 2, "srun")
    assert [rank["host"] for rank in world["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert [rank["local_rank"] for rank in world["ranks"]] == [0, 1, 0, 1]


def test_each_rank_has_a_log_of_its_own(by_srun):
    logs = by_srun.path.glob("logs/train/*/rank-*.log")
    assert sorted(log.name for log in logs) == ["rank-1.log", "rank-2.log", "rank-3.log"]
    assert "starting: 4 ranks on 2 nodes" in by_srun.log()


@pytest.mark.rotating
def test_srun_gives_what_one_machine_gives(by_srun, on_one_machine):
    assert by_srun.samples() == on_one_machine.samples()
    assert by_srun.losses() == on_one_machine.losses()


@pytest.mark.parametrize("launcher", rotating("torchrun", "mpirun"))
def test_other_launchers_give_the_same(by_srun, tmp_path: Path, launcher: str):
    pipeline = by_srun.copy(tmp_path / "project")
    pipeline.configure(runtime={"launcher": launcher}, nodes=2, devices=2, **ROW)
    done = pipeline.run("--until", "train")
    assert done.returncode == 0, done.stdout + pipeline.log()
    world = pipeline.provenance()["world"]
    assert (world["world_size"], world["nodes"], world["launcher"]) == (4, 2, launcher)
    assert sorted(rank["host"] for rank in world["ranks"]) == ["n1", "n1", "n2", "n2"]
    assert pipeline.samples() == by_srun.samples()
    assert pipeline.losses() == by_srun.losses()
