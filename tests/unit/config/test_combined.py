"""What counts in the identity of an average or an ensemble, and what must agree with its members."""

import re

import pytest

from shardline.config.combined import check_member, counted, runs_of
from shardline.config.job_plan import read_plan, write_plan
from shardline.config.load import load_project
from shardline.core.canonical import digest
from shardline.errors import ConfigError


def test_only_what_is_read_counts():
    settings = {
        "seed": 1, "optim": {"lr": 1}, "trainer": {"max_epochs": 3, "accumulate": 2}, "model_args": {"width": 3},
        "average": {"of": ["run:a", "run:b"], "greedy": "validation"},
    }  # fmt: skip
    assert counted(settings) == {
        "seed": 1, "trainer": {"accumulate": 2}, "model_args": {"width": 3}, "average": {"greedy": "validation"},
    }  # fmt: skip
    assert counted({"seed": 1, "optim": {"lr": 1}}) == {"seed": 1, "optim": {"lr": 1}}


@pytest.mark.parametrize("kind", ["average", "ensemble"])
def test_two_spellings_count_alike(kind):
    usual = {"average": {"greedy": None}, "ensemble": {"outputs": "probabilities"}}[kind]
    as_list = {"seed": 1, kind: ["run:a"]}
    as_table = {"seed": 1, kind: {"of": ["run:a"], **usual}}
    assert counted(as_list) == counted(as_table) == {"seed": 1, kind: {}}
    assert runs_of(as_list) == runs_of(as_table) == ["run:a"]


DOCUMENT = {
    "settings": {"model_args": {"width": 3}, "fold": 1},
    "inputs": {"dataset": "0" * 12},
    "model": "mlp",
    "versions": {"training": 1},
}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"model": "linear"}, "its model is linear, and this row's mlp"),
        ({"code": {"model": "1"}}, "its code of the model is 1, and this row's of your own"),
        (
            {"settings": {"model_args": {"width": 4}, "fold": 1}},
            "its model_args.width is 4, and this row's 3",
        ),
        ({"inputs": {"dataset": "1" * 12}}, "its dataset is 111111111111, and this row's 0"),
        (
            {"settings": {"model_args": {"width": 3}, "fold": 2}},
            "it tests on fold 2, and this row on fold 1",
        ),
        (
            {"settings": {**DOCUMENT["settings"], "data": {"normalize": "none"}}},
            "its data.normalize is none, and this row's standard",
        ),
        (
            {"settings": {**DOCUMENT["settings"], "ensemble": {}}},
            "it is an ensemble, which has no weights",
        ),
        ({"versions": {"script": 1}}, "it is a training script"),
    ],
)
def test_members_that_do_not_agree_are_named(changed, text):
    check_member(DOCUMENT, DOCUMENT, "run:a", "runs.tsv line 2", kind="average")
    with pytest.raises(
        ConfigError, match=f"runs.tsv line 2: average names run:b, but {text}.*give"
    ):
        check_member(DOCUMENT, DOCUMENT | changed, "run:b", "runs.tsv line 2", kind="average")


def combined(fake, *rows):
    """Load a project of two members on one dataset and further rows."""
    members = [
        {"name": name, "dataset": "table", "model": "linear", "seed": seed}
        for name, seed in (("a", 1), ("b", 2))
    ]
    usual = {"dataset": "table", "model": "linear"}
    fake.workspace.configure(fake.config, [*({**usual, **row} for row in rows), *members])
    return load_project().named_runs()


def test_members_count_by_identity_and_come_first(fake):
    fake.config["defaults"]["trainer"] = {"max_epochs": 3}
    runs = combined(
        fake,
        {"name": "mean", "average": '["run:a", "run:b"]'},
        {"name": "again", "average": "[run:mean, run:a]"},
        {"name": "both", "ensemble": "{of: [run:a, run:b], outputs: logits}"},
    )
    mean, again, both = (runs[name] for name in ("mean", "again", "both"))
    wholes = {name: digest(run.document) for name, run in runs.items()}
    assert mean.document["inputs"]["bases"] == [
        {"kind": "average", "run": wholes[name], "state": "best"} for name in "ab"
    ]
    assert [one["run"] for one in again.document["inputs"]["bases"]] == [
        wholes["mean"],
        wholes["a"],
    ]
    assert "optim" not in mean.document["settings"]
    assert (
        "trainer" not in mean.document["settings"]
        or "max_epochs" not in (mean.document["settings"]["trainer"])
    )
    assert both.document["settings"]["ensemble"] == {"outputs": "logits"}
    assert [one.file for one in mean.spec.members] == [runs["a"].model, runs["b"].model]
    assert mean.settings.combined.of == [f"run:{runs['a'].id}", f"run:{runs['b'].id}"]
    assert both.members_of_ensemble == [runs["a"].model, runs["b"].model]
    assert mean.members_of_ensemble == []
    plan = read_plan(write_plan(load_project().part(runs=[mean.id])))
    assert plan.runs[mean.id].spec == mean.spec
    # a longer training gives other members; what only a training reads changes nothing else
    fake.config["defaults"]["freeze"] = []
    fake.config["defaults"]["optim"] = {"lr": 0.2}
    edited = combined(fake, {"name": "mean", "average": "[run:a, run:b]"})
    assert edited["mean"].id != mean.id
    given = {"name": "mean", "average": f"[run:{runs['a'].id}, run:{wholes['b']}]"}
    fake.config["defaults"].pop("optim")
    assert combined(fake, given)["mean"].id == mean.id
    assert combined(fake, {"name": "mean", "average": "[run:b, run:a]"})["mean"].id != mean.id


def test_a_grid_of_averages(fake):
    cell = "[[run:a, run:b], {of: [run:a, run:b], greedy: validation}]"
    runs = combined(fake, {"name": "mean", "average": cell})
    found = [name for name in runs if name.startswith("mean")]
    assert found == ["mean_average=run-a-run-b", "mean_average=of-run-a-run-b-greedy-validation"]
    assert len({runs[name].id for name in found}) == 2


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"average": "[run:c, run:b]"}, 'average=run:c is no run of the table; known are a, b'),
        ({"average": "[run:mean, run:b]"}, "average=run:mean names the row itself"),
        ({"average": "[run:a@last, run:b]"}, "average names run:a@last, expected runs with their"),
        ({"average": "[run:a]", "ensemble": "[run:b]"}, "average and ensemble are both given"),
        ({"average": "[run:a]", "optim.lr": 0.1}, "optim.lr has no effect on an average, which tr"),
        ({"average": "[run:a]", "trainer.max_epochs": 3}, "trainer.max_epochs has no effect on an"),
        ({"average": "[run:a]", "init_from": "run:a"}, "init_from has no effect on an average"),
        ({"ensemble": "[run:a]", "checkpoint.mode": "max"}, "checkpoint.mode has no effect on an"),
        ({"average": "[run:a]", "model": "mlp"}, "average names run:a, but its model is linear, and"),
        ({"ensemble": "[run:a, run:a]"}, "ensemble"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_combined_are_rejected(fake, row, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        combined(fake, {"name": "mean", **row})


def test_what_is_no_single_row_is_rejected(fake):
    fake.config["defaults"]["average"] = ["run:a"]
    with pytest.raises(ConfigError, match="average is given under defaults, for all runs"):
        combined(fake, {"name": "mean", "seed": 3})
    fake.config["defaults"].pop("average")
    row = {"name": "both", "ensemble": "[run:a]", "model": "gpt"}
    with pytest.raises(
        ConfigError, match="GPT has a test_step, which is its evaluation; use average"
    ):
        combined(fake, row)
    rows = [{"name": "both", "ensemble": "[run:a]"}, {"name": "mean", "average": "[run:both]"}]
    with pytest.raises(
        ConfigError, match="names run:both, but it is an ensemble, which has no weig"
    ):
        combined(fake, *rows)
