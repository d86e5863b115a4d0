"""The real Snakemake trains of generated chains of runs what the model of staleness says."""

import re
import shutil
from contextlib import chdir
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from shardline.config.load import load_project
from tests.support.campaigns import campaign_seed
from tests.support.chains_of_runs import World, datasets, seal, worlds, written
from tests.support.workspace import Workspace


def planned(workspace: Workspace) -> set[str]:
    """Return the ids of the runs that a dry run would train."""
    done = workspace.snakemake("--dry-run")
    assert done.returncode == 0, done.stdout
    return set(re.findall(r"Job \d+: Training .*\(([0-9a-f]{12})\)", done.stdout))


@pytest.mark.rotating
@pytest.mark.slow
@seed(campaign_seed())
@settings(
    max_examples=5, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(worlds(), st.data())
def test_snakemake_trains_what_is_stale(tiny, world: World, data: st.DataObject) -> None:
    workspace = tiny({"name": "first", "dataset": "table", "model": "linear"})
    shutil.rmtree(workspace.path / "results", ignore_errors=True)

    def load():
        config = {"runs": "config/runs.tsv", "defaults": {"global_batch": 8, "devices": 1}}
        workspace.configure({**config, "datasets": datasets(world)}, written(world, {}))
        with chdir(workspace.path):
            return load_project()

    for run in load().runs.values():
        seal(run)
    world.run()
    name = data.draw(st.sampled_from([*world.nodes]), label="row")
    if data.draw(st.booleans(), label="edited"):
        world.nodes[name] = replace(world.nodes[name], seed=3)
    else:
        shutil.rmtree(load().named_runs()[name].folder)
        world.delete(name)
    runs = load().named_runs()
    assert planned(workspace) == {runs[one].id for one in world.stale()}
