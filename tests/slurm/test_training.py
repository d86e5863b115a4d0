"""Trainings on Slurm beyond the plain case: a preflight check alone, GPUs, four nodes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace


@pytest.fixture(scope="module")
def on_two_nodes(slurm, tmp_path_factory):
    """A project of two nodes with two ranks each, its dataset built."""
    pipeline = Pipeline(Workspace(tmp_path_factory.mktemp("project")), slurm)
    pipeline.configure(runtime={"launcher": "srun"}, nodes=2, devices=2)
    done = pipeline.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
    assert done.returncode == 0, done.stdout
    return pipeline


@pytest.mark.rotating
def test_a_preflight_check_alone(on_two_nodes, tmp_path: Path):
    shardline = Path(sys.executable).with_name("shardline")
    done = on_two_nodes.cluster.login.run(
        str(shardline), "preflight", "--profile", str(on_two_nodes.path / "profile"), "--json",
        cwd=on_two_nodes.path, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (found,) = json.loads(done.stdout[done.stdout.rindex("\n{\n") :]).values()
    assert [rank["host"] for rank in found["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert all(rank["bandwidth_mb_s"] > 0 for rank in found["ranks"])
    assert not list(on_two_nodes.path.glob("results/runs/*/model.safetensors"))


def test_gpus_are_asked_for_and_their_absence_is_named(on_two_nodes, tmp_path: Path):
    """The GPUs of this cluster are files that schedule and bind, but compute nothing."""
    pipeline = on_two_nodes.copy(tmp_path / "project")
    pipeline.configure(runtime={"launcher": "srun"}, nodes=2, devices=2, accelerator="gpu")
    done = pipeline.run("--until", "train")
    assert done.returncode != 0
    assert "devices=2, but torch finds 0 GPUs on this machine" in done.stdout
    (job,) = re.findall(r"SLURM jobid (\d+)", done.stdout)
    told = pipeline.cluster.scontrol("show", "job", job)
    assert "NumNodes=2" in told
    assert "TresPerNode=gres:gpu:2" in told


@pytest.mark.rotating
def test_four_nodes_give_what_one_machine_gives(slurm4, tmp_path: Path):
    on_four = Pipeline(Workspace(tmp_path / "four"), slurm4)
    on_four.configure(runtime={"launcher": "srun"}, nodes=4, devices=1)
    done = on_four.run("--until", "train")
    assert done.returncode == 0, done.stdout + on_four.log()
    world = on_four.provenance()["world"]
    assert [rank["host"] for rank in world["ranks"]] == ["n1", "n2", "n3", "n4"]
    check_measured(on_four.provenance(), re.findall(r"SLURM jobid (\d+)", done.stdout))

    on_one = on_four.copy(tmp_path / "one")
    runtime = {"launcher": "torchrun", "oversubscribe": True}
    on_one.configure(runtime=runtime, nodes=1, devices=4)
    done = on_one.run("--executor", "local", "--cores", "2", "--until", "train")
    assert done.returncode == 0, done.stdout
    assert on_four.samples() == on_one.samples()
    assert on_four.losses() == on_one.losses()
    assert on_one.provenance()["goodput"]["parts"]["queue"] is None


def check_measured(found: dict[str, Any], jobs: list[str]) -> None:
    (attempt,) = found["attempt_log"]
    assert attempt["job"] in jobs
    parts = found["goodput"]["parts"]
    assert parts["queue"] == attempt["queue_s"] >= 0
    assert sum(parts.values()) == pytest.approx(found["goodput"]["elapsed_s"], rel=0.02)
    used = found["resources"]["ranks"]
    assert [rank["host"] for rank in used] == ["n1", "n2", "n3", "n4"]
