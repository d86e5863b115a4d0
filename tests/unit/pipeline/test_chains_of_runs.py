"""What runs after edits of generated chains of runs is what a short model of staleness says.

`SHARDLINE_CAMPAIGN_CHAINS=300 SHARDLINE_SEED=...` says how many chains, and which.
"""

import os
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.core.canonical import digest
from shardline.pipeline.jobs import Jobs
from tests.support.campaigns import campaign_seed
from tests.support.chains_of_runs import Node, World, datasets, edit, seal, worlds, written
from tests.support.fake_project import FakeProject

CHAINS = int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "30"))
SEED = campaign_seed()


def load(fake: FakeProject, world: World, extra: dict[str, Any]) -> Project:
    fake.config["datasets"] = datasets(world)
    fake.workspace.configure(fake.config, written(world, extra))
    return load_project()


def check(project: Project, world: World) -> None:
    """Compare what Snakemake would run, and what these jobs wait for, with the model."""
    runs = project.named_runs()
    stale = {name for name, run in runs.items() if not run.has_model}
    assert stale == world.stale()
    jobs = Jobs(project, None, is_main=True, cores=1)
    bases = jobs.of_job(lambda run: [base.path for base in run.bases if base.is_made])
    for name, run in runs.items():
        asked = bases(_Wildcards(run=run.id))
        expected = [project.layout.name_of(runs[base].model) for base in world.nodes[name].of]
        expected = expected if name in stale else []  # sealed dependents ask for nothing
        assert ([asked] if isinstance(asked, str) else asked) == expected
        assert not any(base.is_outside for base in run.bases)
    # rows of one key are one run, and no others
    for name, run in runs.items():
        twins = {other for other in runs if world.key(other) == world.key(name)}
        assert {other for other in runs if runs[other].id == run.id} == twins


class _Wildcards(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


@seed(SEED)
@settings(
    max_examples=CHAINS, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(worlds(), st.data())
def test_what_runs_is_what_the_model_says(
    fake: FakeProject, world: World, data: st.DataObject
) -> None:
    shutil.rmtree(fake.workspace.path / "results", ignore_errors=True)
    extra: dict[str, Any] = {}
    for project in _edited(fake, world, data, extra):
        check(project, world)
        if data.draw(st.booleans(), label="run"):
            for run in project.runs.values():
                seal(run)
            world.run()
            check(load(fake, world, extra), world)


def _edited(
    fake: FakeProject, world: World, data: st.DataObject, extra: dict[str, Any]
) -> Iterator[Project]:
    """Yield the project as it is, and after each of some edits of table, config and results."""
    yield load(fake, world, extra)
    for number in range(data.draw(st.integers(1, 4), label="edits")):
        if name := edit(world, data, extra, number):
            folder = load(fake, world, extra).named_runs()[name].folder
            shutil.rmtree(folder, ignore_errors=True)
        yield load(fake, world, extra)


def test_a_base_that_left_the_table_is_known_by_its_identity(fake: FakeProject) -> None:
    nodes = {
        "a": Node("a", "one"),
        "b": Node("b", "one", seed=2),
        "mean": Node("mean", "one", "average", ("a", "b")),
    }
    world = World(nodes, {"one": 1, "two": 2})
    project = load(fake, world, {})
    before = project.named_runs()
    for run in project.runs.values():
        seal(run)
    rows = [row for row in written(world, {}) if row["name"] != "b"]
    rows[-1]["average"] = f"[run:a, run:{digest(before['b'].document)[:20]}]"
    fake.workspace.configure(fake.config, rows)
    after = load_project()
    mean = after.named_runs()["mean"]
    assert mean.id == before["mean"].id
    assert [base.is_outside for base in mean.bases] == [False, True]
    assert [*after.outside_bases] == [before["b"].id]
