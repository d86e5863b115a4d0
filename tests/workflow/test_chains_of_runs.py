"""The real Snakemake trains of generated chains of runs what the model of staleness says, and nothing else."""

import shutil
from collections.abc import Mapping
from contextlib import chdir
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from tests.support.campaigns import campaign_seed
from tests.support.chains_of_runs import World, datasets, edit, worlds, written
from tests.support.workspace import Workspace


def load(workspace: Workspace, world: World, extra: dict[str, Any]) -> Project:
    config = {"runs": "config/runs.tsv", "defaults": {"global_batch": 8, "devices": 1}}
    named = datasets(world)
    for dataset in named.values():  # enough rows for a batch of the training split
        dataset["source"]["rows_per_shard"] = 64
    workspace.configure({**config, "datasets": named}, written(world, extra))
    with chdir(workspace.path):
        return load_project()


def sealed(workspace: Workspace) -> dict[str, int]:
    """Return when each run was sealed, by id."""
    files = workspace.matching("results/runs/*/model.safetensors")
    return {file.parent.name: file.stat().st_mtime_ns for file in files}


def made(workspace: Workspace, runs: Mapping[str, RunPlan]) -> set[str]:
    """Return the ids of the runs that a command for the models of all rows makes."""
    before = sealed(workspace)
    models = sorted({f"results/runs/{run.id}/model.safetensors" for run in runs.values()})
    done = workspace.snakemake(*models)
    assert done.returncode == 0, done.stdout
    return {run for run, when in sealed(workspace).items() if before.get(run) != when}


@pytest.mark.rotating
@pytest.mark.slow
@seed(campaign_seed())
@settings(
    max_examples=5, deadline=None, database=None, report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(worlds(least=2, most=4), st.data())
def test_snakemake_trains_what_is_stale(tiny, world: World, data: st.DataObject) -> None:
    workspace = tiny({"name": "first", "dataset": "table", "model": "linear"})
    for folder in ("results", "store", ".snakemake"):
        shutil.rmtree(workspace.path / folder, ignore_errors=True)
    extra: dict[str, Any] = {}
    runs = load(workspace, world, extra).named_runs()
    assert made(workspace, runs) == {run.id for run in runs.values()}
    world.run()
    if name := edit(world, data, extra, 0):
        shutil.rmtree(runs[name].folder)
    runs = load(workspace, world, extra).named_runs()
    assert made(workspace, runs) == {runs[name].id for name in world.stale()}
