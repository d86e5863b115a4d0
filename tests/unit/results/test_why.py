"""Why a run is stale: each cause, made by the edit that a user would make."""

import json
import os
import shutil
from typing import Any

import pytest

from shardline.config import causes as causes_module
from shardline.config.causes import find_causes
from shardline.config.settings import Settings
from shardline.core.files import write_json
from shardline.identity.versions import HISTORIES, ResultVersion
from shardline.results.staleness import explain
from shardline.results.states import State
from tests.support.fake_project import LOCK, MODEL, RUNS
from tests.support.more_settings import extended, newer


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [cause.text for cause in find_causes(old, new)]


# --- documents --------------------------------------------------------------------------------


def known(**definitions: str) -> dict[str, Any]:
    """What is kept of the code of a model, in the module m."""
    found = {f"m:{name}": digest for name, digest in {"<module>": "0", **definitions}.items()}
    return {"model": {"definitions": found, "whole": {}}}


def module(digest: str, name: str = "m") -> dict[str, Any]:
    return {"model": {"definitions": {f"{name}:<module>": digest}, "whole": {}}}


def test_equal_documents_have_no_difference():
    document = {"stage": "train", "settings": {"a": {"b": 1}}, "inputs": {"dataset": "x"}}
    assert differences(document, json.loads(json.dumps(document))) == []


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
    assert differences({"settings": old}, {"settings": new}) == said


def test_swapped_values_are_two_differences():
    old, new = {"lr": 0.1, "decay": 0.2}, {"lr": 0.2, "decay": 0.1}
    assert differences({"settings": old}, {"settings": new}) == [
        "lr 0.1 -> 0.2",
        "decay 0.2 -> 0.1",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (known(f="1"), known(f="2"), ["m: f changed"]),
        (known(**{"A.f": "1", "A": "0"}), known(**{"A.f": "2", "A": "0"}), ["m: A.f changed"]),
        (module("0"), module("1"), ["m: top level changed"]),
        (known(f="1", g="1"), known(f="2", g="2"), ["m: f, g changed"]),
        # a class names its methods in order, so it changes with any that comes or goes
        (known(), known(f="1"), ["m: f added"]),
        (known(f="1"), known(), ["m: f removed"]),
        (known(A="0"), known(**{"A": "1", "A.f": "1"}), ["m: A.f added"]),
        (known(), known(**{"A": "1", "A.f": "1", "A.g": "1"}), ["m: A added"]),
        (known(f="1", g="1"), known(f="2", h="1"), ["m: f changed; h added; g removed"]),
        (module("0"), module("0", "n"), ["m is no longer reached", "n is newly reached"]),
    ],
)
def test_code_differs_by_module_and_definition(old, new, said):
    causes = find_causes({"code": {"model": "1"}}, {"code": {"model": "2"}}, (old, new))
    assert [cause.text for cause in causes] == [f"code of the model: {text}" for text in said]


@pytest.mark.parametrize("definitions", [({}, {}), (known(f="1"), {}), (known(), known())])
def test_code_whose_definitions_were_not_kept_is_told_by_its_part(definitions):
    documents = ({"code": {"source": "1"}}, {"code": {"source": "2"}})
    causes = find_causes(*documents, definitions)
    assert [cause.text for cause in causes] == ["code of the source changed"]


def test_a_module_that_counts_as_a_whole_says_why():
    new = {"model": {**module("1")["model"], "whole": {"m": "exec in line 3"}}}
    causes = find_causes({"code": {"model": "1"}}, {"code": {"model": "2"}}, (module("0"), new))
    told = "code of the model: m: top level changed (counts as a whole: exec in line 3)"
    assert [cause.text for cause in causes] == [told]


def test_a_result_version_says_what_changed(monkeypatch):
    lines = [ResultVersion(changed=text) for text in ("first version", "sums in 64 bits", "seeds")]
    monkeypatch.setitem(HISTORIES, "training", tuple(lines))
    old, new = ({"versions": {"training": number}} for number in (1, 3))
    told = "result version of training 1 -> 3: sums in 64 bits; seeds"
    assert differences(old, new) == [told]


def test_a_newer_setting_differs_from_the_value_of_before(monkeypatch):
    table = extended(Settings, {"x": newer(float, 0)})
    monkeypatch.setattr(causes_module, "settings_of", lambda stage: table)
    assert differences({"settings": {"a": 1}}, {"settings": {"a": 1, "x": 0.5}}) == ["x 0.0 -> 0.5"]


def test_environment_differs_by_package_and_python():
    old = {"python": "3.11", "packages": {"torch": "2.12", "six": "1.0", "numpy": "2.4"}}
    new = {"python": "3.12", "packages": {"torch": "2.13", "einops": "0.8", "numpy": "2.4"}}
    assert differences({"environment": old}, {"environment": new}) == [
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
            ["order of the source files changed"],
        ),
        (
            {"0/x/a": "1", "1/y/a": "2"},
            {"0/x/a": "1", "1/y/a": "3"},
            ["source bytes changed in y/a"],
        ),
    ],
)
def test_source_differs_by_file(old, new, said):
    assert differences({"source": old}, {"source": new}) == said


def test_what_is_not_known_is_still_named():
    old, new = (
        {"template": "aa", "inputs": {"dataset": "d1"}},
        {"template": "bb", "inputs": {"dataset": "d2"}},
    )
    assert differences(old, new) == ["dataset d1 -> d2", "template aa -> bb"]


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
    assert "model own class -> linear" in said
    assert not [text for text in said if "code" in text or "version of" in text]


def test_a_method_of_the_users_model(fake):
    fake.seal_all()
    fake.workspace.write("mypkg/models.py", MODEL.replace("return x", "return 2 * x"))
    assert fake.why("net") == ["code of the model: mypkg.models: Net.forward changed"]
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
    before = old.named_runs()["flat"].dataset.id
    assert fake.why("flat") == [f"dataset {before} -> {fake.run('flat').dataset.id}"]


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
