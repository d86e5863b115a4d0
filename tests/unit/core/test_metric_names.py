"""Names of metrics in every common spelling: what they measure, on which rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.metric_names import find_metric, measure_of
from shardline.core.repeats import bounds_of, is_share

SPELLINGS = [
    "val_{}",
    "val/{}",
    "val.{}",
    "val {}",
    "{}/val",
    "{} (val)",
    "Valid/{}",
    "validation_{}",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_metric_is_found_in_every_spelling(spelling):
    names = [spelling.format("acc"), spelling.format("acc_best"), "train/acc", "val_loss", "epoch"]
    assert measure_of(names[0]) == "acc"
    assert find_metric(names, "acc", "val") == names[0]
    assert find_metric(names, "acc_best", "val") == names[1]
    assert find_metric(names, "acc", "test") is None


def test_the_usual_name_comes_first_then_that_of_the_epoch():
    names = ["val/loss", "val_loss_step", "val_loss_epoch", "val_loss"]
    assert find_metric(names, "loss", "val") == "val_loss"
    assert find_metric(names[1:3], "loss", "val") == "val_loss_epoch"
    assert find_metric(["loss"], "loss", "train") is None


def test_accuracies_are_shares_in_every_spelling():
    assert all(map(is_share, ["accuracy", "test_acc", "test/acc", "acc (test)", "val.accuracy"]))
    assert not any(map(is_share, ["weighted_accuracy", "test/acc_best", "mse", "test", ""]))
    assert bounds_of("test/mse")[0] == 0.0


@given(st.text(max_size=12), st.sampled_from(["train", "val", "test"]))
def test_any_text_is_a_name(name, split):
    assert find_metric([name], measure_of(name), split) in (None, name)
