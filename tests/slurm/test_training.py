"""Trainings on Slurm beyond the plain case: a rehearsal alone, a killed rank, four nodes, GPUs."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Workspace
from tests.slurm.pipeline import Pipeline

LONG = {"trainer.max_epochs": 60, "early_stopping.patience": 0}


@pytest.fixture(scope="module")
def on_two_nodes(slurm, tmp_path_factory):
    """A long training on two nodes of two ranks each, its dataset built."""
    pipeline = Pipeline(Workspace(tmp_path_factory.mktemp("project")), slurm)
    runtime = {"launcher": "srun", "checkpoint_every_steps": 20}
    pipeline.configure(runtime=runtime, nodes=2, devices=2, **LONG)
    done = pipeline.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
    assert done.returncode == 0, done.stdout
    return pipeline


def test_a_rehearsal_alone(on_two_nodes, tmp_path: Path):
    shardline = Path(sys.executable).with_name("shardline")
    done = on_two_nodes.cluster.login.run(
        str(shardline), "rehearse", "--profile", str(on_two_nodes.path / "profile"), "--json",
        cwd=on_two_nodes.path, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (found,) = json.loads(done.stdout[done.stdout.rindex("\n{\n") :]).values()
    assert [rank["host"] for rank in found["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert all(rank["bandwidth_mb_s"] > 0 for rank in found["ranks"])
    assert not list(on_two_nodes.path.glob("results/runs/*/model.safetensors"))


def test_a_killed_rank_is_named_and_the_training_goes_on(on_two_nodes, tmp_path: Path):
    whole = on_two_nodes.copy(tmp_path / "whole")
    done = whole.run("--until", "train")
    assert done.returncode == 0, done.stdout + whole.log()

    killed = on_two_nodes.copy(tmp_path / "killed")
    process = killed.cluster.login.popen(*killed.command("--until", "train"), cwd=killed.path)
    last = "store/work/*/checkpoints/last.ckpt"
    killed.cluster.wait_until(lambda: bool(list(killed.path.glob(last))), "a checkpoint")
    killed.cluster.node("n2").run("pkill", "-KILL", "--newest", "--full", "shardline.worker")
    output, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "its log says why" in output
    named = r"rank \d on n[12], Slurm job \d+, its log is logs/train/run-"
    assert re.search(named, killed.log()), killed.log()

    again = killed.run("--until", "train")
    assert again.returncode == 0, again.stdout
    assert "resuming from step" in killed.log()
    assert killed.samples() == whole.samples()


def test_gpus_are_asked_for_and_their_absence_is_named(on_two_nodes, tmp_path: Path):
    """The GPUs of this cluster are files that schedule and bind, but compute nothing."""
    pipeline = on_two_nodes.copy(tmp_path / "project")
    pipeline.configure(runtime={"launcher": "srun"}, nodes=2, devices=2, accelerator="gpu")
    done = pipeline.run("--until", "train")
    assert done.returncode != 0
    assert "devices=2, but this machine shows 0 GPUs" in pipeline.log()
    (job,) = re.findall(r"SLURM jobid (\d+)", done.stdout)
    told = pipeline.cluster.scontrol("show", "job", job)
    assert "NumNodes=2" in told
    assert "TresPerNode=gres:gpu:2" in told


def test_four_nodes(slurm4, tmp_path: Path):
    pipeline = Pipeline(Workspace(tmp_path), slurm4)
    pipeline.configure(runtime={"launcher": "srun"}, nodes=4, devices=1)
    done = pipeline.run("--until", "train")
    assert done.returncode == 0, done.stdout + pipeline.log()
    world = pipeline.provenance()["world"]
    assert [rank["host"] for rank in world["ranks"]] == ["n1", "n2", "n3", "n4"]
