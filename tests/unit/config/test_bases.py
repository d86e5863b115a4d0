"""Runs that begin from runs: their order, their identities, and what is rejected."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from shardline.config.job_plan import read_plan, recheck_training, write_plan
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.config.references import RowNames, in_order, with_bases
from shardline.config.run_table import Row
from shardline.core.canonical import digest
from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

Graph = dict[str, str | None]  # the base of each row


def row_of(name: str, base: str | None) -> Row:
    where = f'config/runs.tsv line 2 (run "{name}")'
    named = {} if base is None else {"init_from": base}
    return Row(name=name, dataset="d", model="linear", where=where, settings=named, varied={})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = [f"r{number}" for number in range(draw(st.integers(1, 8)))]
    targets = st.none() | st.sampled_from([f"run:{name}" for name in names])
    other = st.sampled_from(["run:4f12", "file:a.pt", "run:r0@last"])
    return {name: draw(targets | other) for name in names}


def chain_of(graph: Graph, name: str) -> list[str]:
    """Return a row and the rows that it begins from, until there is none or one comes again."""
    found = [name]
    while (base := graph[found[-1]]) and base.startswith("run:r"):
        found.append(base[4:].partition("@")[0])
        if found[-1] in found[:-1]:
            break
    return found


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_rows_come_after_their_bases_and_cycles_are_named(graph: Graph) -> None:
    rows = [row_of(name, base) for name, base in graph.items()]
    chains = {name: chain_of(graph, name) for name in graph}
    cyclic = {
        c
        for chain in chains.values()
        if chain[-1] in chain[:-1]
        for c in chain[chain.index(chain[-1]) :]
    }
    if cyclic:
        with pytest.raises(ConfigError) as error:
            in_order(rows, RowNames())
        named = set(re.findall(r"r\d", str(error.value).partition("expected")[0]))
        assert named
        assert named <= cyclic
        return
    ordered = [row.name for row in in_order(rows, RowNames())]
    assert sorted(ordered) == sorted(graph)
    for name, chain in chains.items():
        assert all(ordered.index(base) < ordered.index(name) for base in chain[1:])
        part = with_bases(rows, [name], RowNames())
        assert [row.name for row in part] == [one for one in graph if one in chain]
    if not any(graph.values()):
        assert ordered == [*graph]


def test_a_row_whose_base_is_an_identity_comes_last() -> None:
    rows = [row_of("a", "run:4f12"), row_of("b", "run:a"), row_of("c", None), row_of("d", "run:c")]
    assert [row.name for row in in_order(rows, RowNames())] == ["c", "d", "a", "b"]


def chain(fake: FakeProject, *bases: str, names: Sequence[str] = ("net", "flat")) -> Project:
    """Load a project with `flat`, and a row for each base, each with another seed."""
    rows = [row for row in fake.rows if row["name"] in names]
    added = [
        {
            "name": f"tuned{at}",
            "dataset": "table",
            "model": "linear",
            "init_from": base,
            "seed": at + 2,
        }
        for at, base in enumerate(bases)
    ]
    fake.workspace.configure(fake.config, [*added, *rows])
    return load_project()


def test_the_identity_of_the_base_counts_and_not_its_name(fake: FakeProject) -> None:
    project = chain(fake, "run:flat", "run:tuned0@last")
    runs = project.named_runs()
    assert [*runs] == ["tuned0", "tuned1", "net", "flat"]  # the order of the table
    flat, first, second = (runs[name] for name in ("flat", "tuned0", "tuned1"))
    base = {"kind": "init", "run": digest(flat.document), "state": "best"}
    assert first.document["inputs"]["bases"] == [base]
    assert second.document["inputs"]["bases"][0] == {
        "kind": "init",
        "run": digest(first.document),
        "state": "last",
    }
    assert first.bases[0].path == flat.model
    assert first.spec.init
    assert first.spec.init.file == flat.model
    assert first.settings.init_from == f"run:{flat.id}"
    assert "flat" not in json.dumps(first.document)
    assert (flat.needed_states, first.needed_states) == (("best",), ("last",))
    assert "bases" not in flat.document["inputs"]
    assert "init" not in flat.document["settings"]
    # another name of the base
    fake.rows[1]["name"] = "renamed"
    renamed = chain(fake, "run:renamed", "run:tuned0@last", names=("renamed",)).named_runs()
    assert renamed["tuned1"].id == second.id
    # its identity instead of its name, whole or in part
    given = chain(
        fake, f"run:{flat.id[:6]}", f"run:{digest(first.document)}@last", names=("renamed",)
    )
    assert given.named_runs()["tuned1"].id == second.id
    assert not given.outside_bases
    # another base
    fake.rows[1]["optim.lr"] = 0.2
    edited = chain(fake, "run:renamed", "run:tuned0@last", names=("renamed",)).named_runs()
    assert {edited[name].id for name in ("tuned0", "tuned1")}.isdisjoint({first.id, second.id})


# seed, base by its place among the rows before, and its state
CHAINS = st.lists(
    st.tuples(st.integers(1, 2), st.none() | st.integers(0, 4), st.sampled_from(["", "@last"])),
    min_size=1,
    max_size=5,
)


@given(rows=CHAINS, order=st.randoms(use_true_random=False))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_runs_are_one_where_they_and_what_they_begin_from_are_alike(
    fake: FakeProject, rows: list[tuple[int, int | None, str]], order: Random
) -> None:
    def identities(prefix: str) -> list[str]:
        table = []
        for place, (seed, base, state) in enumerate(rows):
            own = {"name": f"{prefix}{place}", "dataset": "table", "model": "linear", "seed": seed}
            given = (
                {}
                if base is None or not place
                else {"init_from": f"run:{prefix}{base % place}{state}"}
            )
            table.append({**own, **given})
        order.shuffle(table)
        fake.workspace.configure(fake.config, table)
        runs = load_project().named_runs()
        return [runs[f"{prefix}{place}"].id for place in range(len(rows))]

    alike: list[object] = []  # a reference: a run is its seed, and what it begins from
    for place, (seed, base, state) in enumerate(rows):
        alike.append((seed, None if base is None or not place else (alike[base % place], state)))
    found = identities("a")
    assert found == identities("other")
    assert [found.index(one) for one in found] == [alike.index(one) for one in alike]


def test_the_bytes_of_a_file_or_folder_count_and_not_its_path(fake: FakeProject) -> None:
    folder = fake.workspace.path / "models"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        save_file({"w": np.zeros(2, np.float32)}, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text('{"model_type": "bert"}')

    def identities() -> list[str]:
        written = [f"file:models/{name}/model.safetensors" for name in "ab"]
        texts = [*written, "hf:models/a", "hf:models/b"]
        runs = [chain(fake, text).named_runs()["tuned0"] for text in texts]
        assert [run.spec.init.source for run in runs if run.spec.init] == ["file"] * 2 + ["hf"] * 2
        assert all(run.spec.init.sha256 == run.bases[0].identity for run in runs if run.spec.init)
        return [run.id for run in runs]

    before = identities()
    assert before[0] == before[1] != before[2] == before[3]
    project = chain(fake, "file:models/b/model.safetensors")
    part = read_plan(write_plan(project.part(runs=[project.named_runs()["tuned0"].id])))
    run = part.named_runs()["tuned0"]
    recheck_training(part, run)
    save_file({"w": np.ones(2, np.float32)}, folder / "b" / "model.safetensors")
    after = identities()
    assert (after[0], after[2]) == (before[0], before[2])
    assert {after[1], after[3]}.isdisjoint(before)
    with pytest.raises(ConfigError, match="different identity"):
        recheck_training(read_plan(write_plan(part)), run)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("init.rename", '{"encoder.": "backbone."}'),
        ("init.ignore", '[["head.*"]]'),
        ("init.strict", "false"),
    ],
)
def test_how_weights_are_loaded_counts_where_weights_are_loaded(
    fake: FakeProject, setting: str, value: str
) -> None:
    def identity(**more: str) -> str:
        row = {"name": "tuned", "dataset": "table", "model": "linear", **more}
        fake.workspace.configure(fake.config, [row, fake.rows[1]])
        return load_project().named_runs()["tuned"].id

    base = {"init_from": "run:flat", "seed": "3"}
    assert identity(**base) != identity(**base, **{setting: value})
    alone = identity(seed="3")
    with pytest.raises(ConfigError, match=f"{setting} is given without init_from"):
        identity(seed="3", **{setting: value})
    fake.config["defaults"]["init"] = {"strict": False}
    assert identity(seed="3") == alone


def test_a_job_that_loads_some_rows_loads_their_bases(fake: FakeProject) -> None:
    whole = chain(fake, "run:flat", "run:tuned0@last").named_runs()
    part = load_project(only={"tuned1"})
    assert {*part.named_runs()} == {"tuned1", "tuned0", "flat"}
    assert part.named_runs()["tuned1"] == whole["tuned1"]
    # the job of a base knows what later rows need of it
    assert load_project(only={"tuned0"}).named_runs()["tuned0"].needed_states == ("last",)
    alone = read_plan(write_plan(part.part(runs=[whole["tuned1"].id])))
    assert {*alone.runs} == {whole["tuned1"].id}
    assert alone.named_runs()["tuned1"].bases == whole["tuned1"].bases


def test_a_base_outside_of_the_config_is_named_by_its_identity(fake: FakeProject) -> None:
    project = chain(fake)
    flat = project.named_runs()["flat"]
    fake.seal_run(flat)
    tuned = chain(fake, f"run:{flat.id}", names=("net",))
    assert {*tuned.outside_bases} == {flat.id}
    identity = tuned.named_runs()["tuned0"].id
    fake.seal_run(tuned.named_runs()["tuned0"])
    assert chain(fake, "run:flat").named_runs()["tuned0"].id == identity
    # after its deletion, a sealed run still has its identity
    for file in flat.folder.iterdir():
        file.unlink()
    flat.folder.rmdir()
    assert chain(fake, f"run:{flat.id[:5]}", names=("net",)).named_runs()["tuned0"].id == identity


def test_what_names_no_base_is_rejected(fake: FakeProject, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("")
    cases = {
        "flat": 'did you mean "run:flat"?',
        "run:": "expected run:NAME",
        "run:flt": 'did you mean "flat"?',
        "run:flat@first": "expected one of best, last",
        "run:4f00aa": "none with an identity that begins so",
        "file:missing.pt": "is missing",
        "file:w.txt": "ends in .txt",
        "hf:missing": "has no config.json",
        "run:tuned0": "names the row itself",
    }
    for text, part in cases.items():
        with pytest.raises(ConfigError, match=re.escape(part)) as error:
            chain(fake, text)
        assert f"init_from={text}" in str(error.value)
        assert "config/runs.tsv line 2" in str(error.value)
        assert len(str(error.value).splitlines()) == 1
    fake.seal_run(chain(fake).named_runs()["flat"])
    run = chain(fake).named_runs()["flat"].id
    with pytest.raises(ConfigError, match=f"write run:{run}"):
        chain(fake, f"file:results/runs/{run}/model.safetensors")
    with pytest.raises(ConfigError, match=r"tuned0 from tuned1 from tuned2 from tuned0"):
        chain(fake, "run:tuned1", "run:tuned2", "run:tuned0")


def test_an_error_of_a_base_is_listed_once(fake: FakeProject) -> None:
    fake.rows[1]["global_batch"] = 7
    fake.rows[1]["devices"] = 2
    with pytest.raises(ConfigError) as error:
        chain(fake, "run:flat", "run:tuned0")
    assert len(str(error.value).splitlines()) == 1
