"""Why a run is stale: each cause, made by the edit that a user would make."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardline.config import Dataset, Project, Run, load_project
from shardline.files import read_json, write_json
from shardline.identity import digest
from shardline.identity.content import file_sha256
from shardline.why import State, diff_documents, explain, last_step, sealed_names, state_of
from tests.conftest import Workspace

MODEL = """
class Net:
    def __init__(self, width=8):
        self.width = width

    def forward(self, x):
        return x
"""
LOCK = "torch=={torch}\n    # via shardline\nnumpy==2.4.6\n    # via shardline\n"
RUNS = (
    {"name": "net", "dataset": "rows", "model": "mypkg.models:Net", "optim.lr": 0.1},
    {"name": "flat", "dataset": "table", "model": "linear", "optim.lr": 0.1},
)


class FakeProject:
    """A real config with results that were never computed, in the present folder."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.rows: list[dict[str, Any]] = [dict(row) for row in RUNS]
        self.config: dict[str, Any] = {
            "runs": "config/runs.tsv",
            "lock": "my.lock",
            "defaults": {"global_batch": 8, "devices": 1},
            "datasets": {
                "table": {
                    "source": {"type": "synthetic", "rows_per_shard": 8, "features": 2},
                    "shards": 4,
                },
                "rows": {
                    "source": {"type": "mypkg.sources:Rows", "files": ["data/*.csv"]},
                    "shards": 1,
                },
            },
        }
        workspace.write("mypkg/__init__.py", "")
        workspace.write("mypkg/models.py", MODEL)
        workspace.write("mypkg/sources.py", "class Rows:\n    pass\n")
        workspace.write("data/a.csv", "1,2\n")
        workspace.write("data/b.csv", "3,4\n")
        workspace.write("my.lock", LOCK.format(torch="2.12.0"))

    def load(self) -> Project:
        self.workspace.configure(self.config, self.rows)
        return load_project()

    def run(self, name: str) -> Run:
        return next(run for run in self.load().runs.values() if run.name == name)

    def seal_all(self) -> Project:
        project = self.load()
        for dataset in project.datasets.values():
            self.seal_dataset(project, dataset)
        for run in project.runs.values():
            self.seal_run(run)
            self.seal_evaluation(run)
        return project

    def seal_dataset(self, project: Project, dataset: Dataset) -> None:
        records = []
        for number in range(dataset.settings["shards"]):
            path = project.store / "datasets" / dataset.id / f"shard-{number:05d}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"ids": np.arange(number, 64 + number)}, path)
            size, sha256 = path.stat().st_size, file_sha256(path)
            records.append({"file": path.name, "rows": {}, "bytes": size, "sha256": sha256})
        total = sum(record["bytes"] for record in records)
        document = {
            "dataset": dataset.id,
            "bytes": total,
            "shards": records,
            "identity": dataset.document,
        }
        write_json(dataset.manifest, document)

    def seal_run(self, run: Run) -> None:
        identity = digest(run.document)
        write_json(run.folder / "identity.json", run.document)
        spec = {
            "run": run.id, "name": run.name, "identity": identity,
            "dataset": {"name": run.dataset.name, "id": run.dataset.id},
            "model_class": run.model_class, "settings": run.settings,
        }  # fmt: skip
        write_json(run.folder / "run.json", spec)
        model, metrics = run.folder / "model.safetensors", run.folder / "metrics.jsonl"
        save_file(
            {"w": np.zeros(3, np.float32)}, model, metadata={"format": "pt", "identity": identity}
        )
        metrics.write_text('{"step": 1}\n{"step": 2, "val_loss": 0.5}\n')
        provenance = {
            "identity": identity,
            "manifest_sha256": file_sha256(run.dataset.manifest)
            if run.dataset.manifest.exists()
            else "",
            "files": {path.name: file_sha256(path) for path in (model, metrics)},
        }
        write_json(run.folder / "provenance.json", provenance)

    def seal_evaluation(self, run: Run, accuracy: float = 0.9778) -> None:
        headline = {"metric": "accuracy", "value": accuracy, "mode": "max"}
        document = {"run": run.id, "headline": headline, "identity": run.evaluation_document}
        write_json(run.evaluation, document)

    def begin_training(self, run: Run, steps: int) -> None:
        work = Path("store/work") / run.id
        (work / "checkpoints").mkdir(parents=True)
        (work / "checkpoints" / "last.ckpt").write_bytes(b"state")
        lines = [json.dumps({"step": step}) for step in range(1, steps + 1)]
        (work / "metrics.jsonl").write_text("\n".join(lines) + '\n{"st')  # a line being written

    def why(self, name: str) -> list[str]:
        project = self.load()
        run = next(run for run in project.runs.values() if run.name == name)
        return [cause.text for cause in explain(project, run).causes]


@pytest.fixture
def fake(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    monkeypatch.chdir(workspace.path)
    monkeypatch.delenv("SHARDLINE_STORE", raising=False)
    return FakeProject(workspace)


# --- documents --------------------------------------------------------------------------------


def code(**definitions: str) -> dict[str, Any]:
    return {"code": {"m": {"<module>": "0", **definitions}}}


def test_equal_documents_have_no_difference():
    document = {"stage": "train", "settings": {"a": {"b": 1}}, "inputs": {"dataset": "x"}}
    assert diff_documents(document, json.loads(json.dumps(document))) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"optim": {"lr": 0.1}}, {"optim": {"lr": 0.01}}, ["optim.lr 0.1 -> 0.01"]),
        ({"seed": 1}, {}, ["seed 1 -> unset"]),
        ({"args": {}}, {"args": {"hidden": [64, 32]}}, ["args.hidden unset -> [64, 32]"]),
        ({"args": {"hidden": [64]}}, {"args": {}}, ["args.hidden [64] -> unset"]),
        (
            {"on": True, "stop": None},
            {"on": False, "stop": 0.5},
            ["on true -> false", "stop null -> 0.5"],
        ),
        ({"precision": "32-true"}, {"precision": "bf16"}, ["precision 32-true -> bf16"]),
        ({"x": 1}, {"x": 1.0}, ["x 1 -> 1.0"]),
        ({"x": 1}, {"x": "1"}, ['x 1 -> "1"']),
        ({"x": "unset"}, {}, ['x "unset" -> unset']),
    ],
)
def test_settings_differ_by_dotted_key_and_both_values(old, new, said):
    assert diff_documents({"settings": old}, {"settings": new}) == said


def test_swapped_values_are_two_differences():
    old, new = {"lr": 0.1, "decay": 0.2}, {"lr": 0.2, "decay": 0.1}
    assert diff_documents({"settings": old}, {"settings": new}) == [
        "lr 0.1 -> 0.2",
        "decay 0.2 -> 0.1",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (code(f="1"), code(f="2"), "m: f changed"),
        (code(**{"A.f": "1", "A": "0"}), code(**{"A.f": "2", "A": "0"}), "m: A.f changed"),
        (
            {"code": {"m": {"<module>": "0"}}},
            {"code": {"m": {"<module>": "1"}}},
            "m: top level changed",
        ),
        (code(f="1", g="1"), code(f="2", g="2"), "m: f, g changed"),
        # a module's statements name its definitions in order, so they change with any that comes or goes
        (
            {"code": {"m": {"<module>": "0"}}},
            {"code": {"m": {"<module>": "1", "f": "1"}}},
            "m: f added",
        ),
        (
            {"code": {"m": {"<module>": "0", "f": "1"}}},
            {"code": {"m": {"<module>": "1"}}},
            "m: f removed",
        ),
        (code(A="0"), code(**{"A": "1", "A.f": "1"}), "m: A.f added"),
        (code(), code(**{"A": "1", "A.f": "1", "A.g": "1"}), "m: A added"),
        (code(f="1", g="1"), code(f="2", h="1"), "m: f changed; h added; g removed"),
        ({"code": {"m": {}}}, {"code": {}}, "m: no longer imported"),
        ({"code": {}}, {"code": {"m": {}}}, "m: newly imported"),
    ],
)
def test_code_differs_by_module_and_definition(old, new, said):
    assert diff_documents(old, new) == [said]


def test_environment_differs_by_package_and_python():
    old = {"python": "3.11", "packages": {"torch": "2.12", "six": "1.0", "numpy": "2.4"}}
    new = {"python": "3.12", "packages": {"torch": "2.13", "einops": "0.8", "numpy": "2.4"}}
    assert diff_documents({"environment": old}, {"environment": new}) == [
        "python 3.11 -> 3.12",
        "einops 0.8 newly needed",
        "six 1.0 no longer needed",
        "torch 2.12 -> 2.13",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"0/a.csv": "1"}, {"0/a.csv": "2"}, ["source bytes changed in a.csv"]),
        # a file before others renumbers them; that alone is no change of theirs
        ({"0/b.csv": "1"}, {"0/a.csv": "9", "1/b.csv": "1"}, ["source file a.csv added"]),
        ({"0/a.csv": "9", "1/b.csv": "1"}, {"0/b.csv": "1"}, ["source file a.csv removed"]),
        (
            {"0/a": "1", "1/b": "2"},
            {"0/b": "2", "1/a": "1"},
            ["source files stand in another order"],
        ),
        (
            {"0/x/a": "1", "1/y/a": "2"},
            {"0/x/a": "1", "1/y/a": "3"},
            ["source bytes changed in y/a"],
        ),
    ],
)
def test_source_differs_by_file(old, new, said):
    assert diff_documents({"source": old}, {"source": new}) == said


def test_what_is_not_known_is_still_named():
    old, new = (
        {"template": "aa", "inputs": {"dataset": "d1"}},
        {"template": "bb", "inputs": {"dataset": "d2"}},
    )
    assert diff_documents(old, new) == ["dataset d1 -> d2", "template aa -> bb"]


# --- causes of a whole project ----------------------------------------------------------------


def test_a_sealed_and_evaluated_run_is_fresh(fake):
    fake.seal_all()
    fake.workspace.write("mypkg/models.py", "# a comment\n" + MODEL)
    project = fake.load()
    assert [explain(project, run).state for run in project.runs.values()] == [
        State.DONE,
        State.DONE,
    ]


def test_a_setting(fake):
    fake.seal_all()
    fake.rows[0]["optim.lr"] = 0.01
    assert fake.why("net") == ["optim.lr 0.1 -> 0.01"]
    assert fake.why("flat") == []


def test_the_model_and_its_code(fake):
    fake.seal_all()
    fake.rows[0]["model"] = "linear"
    said = fake.why("net")
    assert "model mypkg.models:Net -> shardline.models.linear:Linear" in said
    assert "mypkg.models: no longer imported" in said
    assert "shardline.models.linear: newly imported" in said


def test_a_method_of_the_users_model(fake):
    fake.seal_all()
    fake.workspace.write("mypkg/models.py", MODEL.replace("return x", "return 2 * x"))
    assert fake.why("net") == ["mypkg.models: Net.forward changed"]
    assert fake.why("flat") == []


def test_the_environment(fake):
    fake.seal_all()
    fake.workspace.write("my.lock", LOCK.format(torch="2.13.0"))
    assert fake.why("net") == ["torch 2.12.0 -> 2.13.0"]


def test_the_dataset_is_told_from_within(fake):
    fake.seal_all()
    fake.config["datasets"]["table"]["shards"] = 8
    assert fake.why("flat") == ["dataset table: shards 4 -> 8"]
    fake.workspace.write("data/a.csv", "1,2,3\n")
    fake.workspace.write("data/c.csv", "5,6\n")
    assert fake.why("net") == [
        "dataset rows: source bytes changed in a.csv",
        "dataset rows: source file c.csv added",
    ]


def test_another_dataset_is_told_by_name(fake):
    fake.seal_all()
    fake.rows[0]["dataset"] = "table"
    assert fake.why("net") == ["dataset rows -> table"]
    # a copy of the same source under another name shows what else is new
    fake.config["datasets"]["wider"] = {**fake.config["datasets"]["table"], "shards": 5}
    fake.rows[1]["dataset"] = "wider"
    assert fake.why("flat") == ["dataset table -> wider", "dataset wider: shards 4 -> 5"]


def test_a_dataset_whose_manifest_is_gone_is_told_by_digest(fake):
    old = fake.seal_all()
    shutil.rmtree("results/datasets")
    fake.config["datasets"]["table"]["shards"] = 8
    before = next(run.dataset.digest for run in old.runs.values() if run.name == "flat")
    assert fake.why("flat") == [f"dataset {before} -> {fake.run('flat').dataset.digest}"]


def test_a_stale_evaluation_is_compared_with_the_earlier_one(fake):
    fake.seal_all()
    fake.config["defaults"]["evaluation"] = {"split": "validation"}
    project = fake.load()
    explanation = explain(project, next(iter(project.runs.values())))
    assert explanation.state is State.TRAINED
    assert explanation.compared_with
    assert explanation.compared_with.parent.name == "evaluations"
    assert [cause.text for cause in explanation.causes] == ["split test -> validation"]


def test_a_run_that_was_never_evaluated_has_nothing_to_compare_with(fake):
    run = fake.run("flat")
    fake.seal_run(run)
    explanation = explain(fake.load(), run)
    assert (explanation.state, explanation.compared_with) == (State.TRAINED, None)


# --- the choice of the nearest document -------------------------------------------------------


def test_nothing_is_older_than_the_first_run(fake):
    explanation = explain(fake.load(), fake.run("net"))
    assert (explanation.state, explanation.compared_with, explanation.causes) == (
        State.NEW,
        None,
        (),
    )


def test_the_same_name_is_nearer_than_fewer_differences(fake):
    fake.seal_all()
    fake.rows = [
        {**RUNS[1], "name": "other", "optim.lr": 0.5},
        {**RUNS[1], "optim.lr": 0.5, "seed": 2},
    ]
    fake.seal_run(fake.run("other"))
    assert fake.why("flat") == ["seed 1 -> 2", "optim.lr 0.1 -> 0.5"]


def test_a_new_name_is_compared_with_the_most_alike_run(fake):
    fake.seal_all()
    fake.rows.append({**RUNS[1], "name": "flatter", "optim.lr": 0.2})
    explanation = explain(fake.load(), fake.run("flatter"))
    assert explanation.state is State.NEW
    assert [cause.text for cause in explanation.causes] == ["optim.lr 0.1 -> 0.2"]


def test_a_sealed_run_is_nearer_than_one_that_was_cut_off(fake):
    fake.seal_all()
    fake.rows[1]["optim.lr"] = 0.2
    write_json(fake.run("flat").folder / "identity.json", fake.run("flat").document)
    fake.rows[1] |= {"optim.lr": 0.2, "seed": 2}
    assert fake.why("flat") == ["seed 1 -> 2", "optim.lr 0.1 -> 0.2"]


def test_of_equally_near_runs_the_newest_counts(fake):
    for age, lr in ((300, 0.2), (100, 0.3), (200, 0.4)):
        fake.rows[1]["optim.lr"] = lr
        run = fake.run("flat")
        fake.seal_run(run)
        written = (run.folder / "identity.json").stat().st_mtime - age
        os.utime(run.folder / "identity.json", (written, written))
    fake.rows[1]["optim.lr"] = 0.5
    assert fake.why("flat") == ["optim.lr 0.3 -> 0.5"]


def test_a_damaged_document_is_passed_over(fake):
    fake.seal_all()
    old = fake.run("flat")
    fake.rows[1]["optim.lr"] = 0.2
    fake.seal_run(fake.run("flat"))
    (old.folder / "identity.json").write_text("{")
    fake.rows[1]["optim.lr"] = 0.3
    assert fake.why("flat") == ["optim.lr 0.2 -> 0.3"]


# --- states -----------------------------------------------------------------------------------


def test_every_state_of_a_run(fake):
    fake.load()

    def state() -> State:
        return state_of(fake.run("flat"), Path("store"), sealed_names())

    assert state() is State.NEW
    fake.begin_training(fake.run("flat"), steps=3)
    assert state() is State.IN_PROGRESS
    fake.seal_run(fake.run("flat"))
    assert state() is State.TRAINED
    fake.seal_evaluation(fake.run("flat"))
    assert state() is State.DONE
    fake.rows[1]["optim.lr"] = 0.7
    assert state() is State.STALE


def test_the_last_step_is_read_past_a_torn_line(fake):
    run = fake.run("flat")
    assert last_step(run, Path("store")) is None
    fake.begin_training(run, steps=20_000)
    assert last_step(run, Path("store")) == 20_000


def test_a_name_with_hyphens_is_not_mistaken_for_a_shorter_one(fake):
    fake.rows.append({**RUNS[1], "name": "flat-2"})
    fake.seal_run(fake.run("flat-2"))
    assert sealed_names() == {"flat-2"}
    assert read_json(fake.run("flat-2").folder / "run.json", remedy="")["name"] == "flat-2"
    assert state_of(fake.run("flat"), Path("store"), sealed_names()) is State.NEW
