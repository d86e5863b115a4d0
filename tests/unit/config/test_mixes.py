"""Mixes of datasets in the run table: how they are written, what counts, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.files import read_json, write_json
from shardline.errors import ConfigError
from shardline.results.accept.candidates import find_by_cause
from shardline.results.verify import verify_target
from tests.support.fake_project import FakeProject

SOURCES = {
    name: {"source": {"type": "synthetic", "rows_per_shard": 8, "features": 2, "seed": seed}, "shards": 2}
    for seed, name in enumerate(["web", "books", "code"])
}  # fmt: skip
MIXES = {"pretrain": {"web": 0.7, "books": 0.2, "code": 0.1}}


def load(folder: Path, *cells: str, **config: Any) -> Project:
    """Load a project with a run of `linear` for each cell of the column `dataset`."""
    (folder / "config").mkdir(exist_ok=True)
    rows = [f"r{number}\t{cell}\tlinear" for number, cell in enumerate(cells)]
    (folder / "config" / "runs.tsv").write_text("\n".join(["name\tdataset\tmodel", *rows, ""]))
    given = {"runs": "config/runs.tsv", "defaults": {}, "datasets": SOURCES, "mixes": MIXES}
    return load_project({**given, **config}, workdir=folder)


def only(project: Project) -> RunPlan:
    (run,) = project.runs.values()
    return run


def message(folder: Path, *cells: str, **config: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(folder, *cells, **config)
    return str(error.value)


def test_one_mix_however_it_is_written(tmp_path: Path) -> None:
    run = only(
        load(
            tmp_path,
            "pretrain",
            "{web: 0.7, books: 0.2, code: 0.1}",
            "{code: 1, web: 7, books: 2}",
            '{"books": 0.4, "code": 0.2, "web": 1.4}',
        )
    )
    weights = {part.dataset.name: str(part.weight) for part in run.parts}
    assert weights == {"web": "7/10", "books": "1/5", "code": "1/10"}
    ids = [part.dataset.id for part in run.parts]
    assert ids == sorted(ids)
    expected = [[part.dataset.id, str(part.weight)] for part in run.parts]
    assert run.document["inputs"] == {"datasets": expected}
    assert run.dataset_name == "0.7 web + 0.2 books + 0.1 code"


@given(st.lists(st.integers(1, 10**6).map(lambda n: n / 1000), min_size=3, max_size=3))
def test_weights_are_exact_and_sum_to_one(tmp_path_factory, weights):
    text = ", ".join(f"{name}: {weight!r}" for name, weight in zip(SOURCES, weights, strict=True))
    run = only(load(tmp_path_factory.mktemp("mix"), f"{{{text}}}"))
    assert sum(part.weight for part in run.parts) == 1
    total = sum(round(weight * 1000) for weight in weights)
    found = {part.dataset.name: part.weight * total for part in run.parts}
    assert found == {name: round(w * 1000) for name, w in zip(SOURCES, weights, strict=True)}


def test_renaming_changes_nothing_and_weights_do(tmp_path: Path) -> None:
    first = only(load(tmp_path, "{web: 0.7, books: 0.3}"))
    renamed = {"b": SOURCES["web"], "a": SOURCES["books"]}
    same = only(load(tmp_path, "{a: 0.3, b: 0.7}", datasets=renamed, mixes={}))
    assert (same.id, same.evaluation_id) == (first.id, first.evaluation_id)
    assert only(load(tmp_path, "{web: 0.6, books: 0.4}")).id != first.id
    assert only(load(tmp_path, "{web: 0.3, books: 0.7}")).id != first.id


def test_a_mix_of_one_dataset_is_the_dataset(tmp_path: Path) -> None:
    twice = {**SOURCES, "again": SOURCES["web"]}
    run = only(load(tmp_path, "web", "{web: 3}", "{web: 0.2, again: 0.5}", datasets=twice))
    assert run.document["inputs"] == {"dataset": run.dataset.id}


def test_a_list_is_a_grid(tmp_path: Path) -> None:
    project = load(tmp_path, "[web, {web: 0.5, books: 0.5}, pretrain]")
    names = ["r0_dataset=web", "r0_dataset=web-0.5-books-0.5", "r0_dataset=pretrain"]
    assert [run.name for run in project.runs.values()] == names
    assert [len(run.parts) for run in project.runs.values()] == [1, 2, 3]
    assert [run.varied["dataset"] for run in project.runs.values()][::2] == ["web", "pretrain"]


def test_all_parts_are_datasets_of_the_project(tmp_path: Path) -> None:
    project = load(tmp_path, "{web: 0.7, books: 0.3}")
    assert sorted(one.name for one in project.datasets.values()) == ["books", "web"]
    assert len(project.manifests_of_report(lambda _: False)) == 2


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("pretrian", "dataset=pretrian is not in datasets or mixes of config/config.yaml; did you mean \"pretrain\"?"),
        ("{web: 0}", "dataset.web=0.0 is not more than 0"),
        ("{web: -1}", "dataset.web=-1.0 is not more than 0"),
        ("{}", "dataset is empty; add an entry"),
        ("[]", "dataset=[] is an empty grid; list at least one value"),
        ("[web, 3]", "dataset=3 is not text or a table of keys; put it in quotes"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, cell: str, expected: str) -> None:
    assert message(tmp_path, cell) == f'config/runs.tsv line 2 (run "r0"): {expected}'


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    mixes = {"a": {"web": 1, "boks": 2}, "code": {"web": 1}}
    lines = message(tmp_path, "webb", "{cod: 1}", mixes=mixes).splitlines()
    assert lines[:2] == [
        'config/config.yaml: mixes.a.boks is not in datasets; did you mean "books"?',
        "config/config.yaml: mixes.code has the name of a dataset; rename one of them",
    ]
    assert [line.partition("dataset=")[2].split()[0] for line in lines[2:]] == ["webb", '{"cod":']


REFUSED = {
    "data.streams=2 cannot be combined with a mix; use data.streams=1": {"streams": 2},
    "data.epoch=partition cannot be combined with a mix; set its length with data.epoch_samples": {
        "epoch": "partition"
    },
    "data.last_batch=pad cannot be combined with a mix, whose batches are all full; use data.last_batch=drop": {
        "last_batch": "pad"
    },
    "data.epoch_samples=3 is less than global_batch=64; use at least 64": {"epoch_samples": 3},
    "data.class_weights is given for a mix, which has weights of datasets instead; leave it out": {
        "class_weights": "balanced"
    },
}


def test_what_does_not_go_with_a_mix(tmp_path: Path) -> None:
    for expected, data in REFUSED.items():
        found = message(tmp_path, "pretrain", defaults={"data": data})
        assert found == f'config/runs.tsv line 2 (run "r0"): {expected}'
    together = {key: value for data in REFUSED.values() for key, value in data.items()}
    found = message(tmp_path, "pretrain", defaults={"data": together})
    assert len(found.splitlines()) == len(REFUSED)


# --- sealed results of a mix ----------------------------------------------------------------------


@pytest.fixture
def mixed(fake: FakeProject) -> FakeProject:
    """A project with a sealed run on a mix."""
    fake.config["datasets"] = {name: dict(entry) for name, entry in SOURCES.items()}
    fake.rows = [{"name": "mix", "dataset": "{web: 0.7, books: 0.3}", "model": "linear"}]
    fake.seal_all()
    return fake


def test_why_names_weights_and_the_datasets_that_came_went_or_changed(mixed: FakeProject) -> None:
    mixed.rows[0]["dataset"] = "{web: 0.5, books: 0.5}"
    assert sorted(mixed.why("mix")) == [
        "weight of dataset books 3/10 -> 1/2",
        "weight of dataset web 7/10 -> 1/2",
    ]
    mixed.rows[0]["dataset"] = "{web: 0.7, code: 0.3}"
    assert mixed.why("mix") == [
        "dataset books is no longer read",
        "dataset code is newly read, with the weight 3/10",
    ]
    mixed.rows[0]["dataset"] = "{web: 0.7, books: 0.3}"
    mixed.config["datasets"]["books"]["shards"] = 3
    assert mixed.why("mix") == ["dataset books: shards 2 -> 3"]
    mixed.rows[0]["dataset"] = "web"
    assert mixed.why("mix") == [
        "dataset books is no longer read",
        "weight of dataset web 7/10 -> 1",
    ]


def test_verify_checks_each_manifest(mixed: FakeProject) -> None:
    project = mixed.load()
    (run,) = project.runs.values()
    assert verify_target(project, "run", run.id).problems == []
    file = run.parts[1].dataset.manifest
    write_json(file, {**read_json(file, remedy=""), "more": 1})
    (problem,) = verify_target(project, "run", run.id).problems
    assert str(file) in problem
    spec = read_json(run.folder / "run.json", remedy="")
    spec["datasets"][0]["weight"] = "1/2"
    write_json(run.folder / "run.json", spec)
    assert any("run.json: dataset" in one for one in verify_target(project, "run", run.id).problems)


def test_a_mix_is_accepted_by_cause_with_its_datasets(mixed: FakeProject) -> None:
    lock = mixed.workspace.path / "my.lock"
    lock.write_text(lock.read_text().replace("numpy==2.4.6", "numpy==2.4.7"))
    found = list(find_by_cause(mixed.load(), {"environment"}))
    assert [one.asked.name for one in found] == ["web", "books", "mix"]
    mixed.rows[0]["dataset"] = "{web: 0.6, books: 0.4}"
    found = list(find_by_cause(mixed.load(), {"environment"}))
    assert [one.asked.name for one in found] == ["web", "books"]
