"""What counts in the identity of an average or an ensemble, and what must agree with its members."""

import pytest

from shardline.config.combined import check_member, counted, runs_of
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
