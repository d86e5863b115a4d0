"""Runs that train at a time on one machine get cores of their own, and the bits of a run alone."""

import json
import os

import pytest

ROW = {"dataset": "table", "model": "mlp", "devices": 1}


def models(workspace):
    """Return the sealed weights by seed."""
    found = {}
    for path in workspace.matching("results/runs/*/model.safetensors"):
        provenance = json.loads(path.with_name("provenance.json").read_bytes())
        found[provenance["seed"]] = path.read_bytes(), provenance
    return found


@pytest.mark.rotating
@pytest.mark.slow
def test_runs_side_by_side_have_the_bits_of_runs_alone(tiny, tmp_path):
    rows = [{**ROW, "name": f"run{seed}", "seed": seed} for seed in (1, 2)]
    workspace = tiny(*rows)
    env = {"SHARDLINE_LOCKS": str(tmp_path / "locks")}
    done = workspace.snakemake("--cores", "2", "--until", "train", env=env)
    assert done.returncode == 0, done.stdout
    assert "2 runs at a time on 2 cores; 2 runs" in done.stdout
    beside = models(workspace)
    cores = {found["world"]["ranks"][0]["cpus"] for _, found in beside.values()}
    if len(os.sched_getaffinity(0)) == 2:
        assert cores == {str(core) for core in os.sched_getaffinity(0)}
    for path in workspace.matching("results/runs/*"):
        path.rename(tmp_path / path.name)
    for path in workspace.matching("store/work/*"):
        path.rename(tmp_path / f"{path.name}-work")
    done = workspace.snakemake("--cores", "1", "--until", "train")
    assert done.returncode == 0, done.stdout
    assert "1 run at a time on 1 core; 2 runs" in done.stdout
    alone = models(workspace)
    assert {seed: model for seed, (model, _) in alone.items()} == {
        seed: model for seed, (model, _) in beside.items()
    }
    assert {found["world"]["ranks"][0]["threads"] for _, found in alone.values()} == {1}
