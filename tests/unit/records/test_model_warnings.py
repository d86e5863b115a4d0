"""Warnings on sealed models that did not learn: what must have one, and above all what must not."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.report_runs import write_run

from shardline.pipeline.terminal_rows import final_rows
from shardline.records.model_warnings import (
    MIN_SAMPLES,
    on_evaluation,
    on_losses,
    on_weights,
    read_losses,
    read_warnings,
)
from shardline.report import read_report
from shardline.report.page import render_page
from shardline.results.states import describe_runs
from shardline.training.sealed_training import largest_weight

LOSSES = st.floats(1e-6, 1e6)
CURVES = st.lists(LOSSES, min_size=1, max_size=40)


def kinds(warnings) -> list[str]:
    return [one.kind for one in warnings]


@given(
    train=CURVES, held_out=st.none() | CURVES, place=st.integers(1, 40), share=st.floats(0, 0.99)
)
def test_a_loss_that_fell_anywhere_has_no_warning(train, held_out, place, share):
    train = [*train[:place], train[0] * share, *train[place:]]
    held_out = held_out and [*held_out, held_out[-1] * 1.5]  # not the same at each validation
    curves = {"train_loss": train} | ({"val_loss": held_out} if held_out else {})
    assert on_losses(curves) is None
    swapped = {"val_loss": train} | ({"train_loss": held_out} if held_out else {})
    assert on_losses(swapped) is None, "a validation loss that fell is enough"


@given(train=st.lists(LOSSES, max_size=1), held_out=st.lists(LOSSES, max_size=1))
def test_one_point_is_no_curve(train, held_out):
    assert on_losses({"train_loss": train, "val_loss": held_out}) is None


@given(train=st.sets(LOSSES, min_size=5, max_size=40), held_out=st.lists(LOSSES, max_size=1))
def test_a_loss_that_rises_all_the_time_has_a_warning(train, held_out):
    warning = on_losses({"train_loss": sorted(train), "val_loss": held_out})
    assert warning
    assert warning.kind == "loss"
    assert f"train_loss is {min(train):.4g} at first" in warning.sentence


@given(later=st.lists(LOSSES, min_size=3, max_size=20), first=st.floats(1e-8, 1e-7))
def test_a_loss_that_jumps_and_stays_there_has_a_warning(later, first):
    assert on_losses({"train_loss": [first, *later]})


@given(first=LOSSES, number=st.integers(1, 20))
def test_a_loss_that_is_not_finite_after_its_first_value_has_a_warning(first, number):
    lost = [math.nan] * number
    assert "not finite since" in on_losses({"train_loss": [first, *lost]}).sentence
    assert on_losses({"train_loss": [math.nan, *lost]})
    assert on_losses({"train_loss": [first, *lost, first / 2]}) is None, "it recovered and fell"


@given(loss=LOSSES, number=st.integers(3, 20), train=st.lists(LOSSES, max_size=3))
def test_weights_that_do_not_change_give_the_same_validation(loss, number, train):
    assume(all(value >= train[0] for value in train))
    curves = {"train_loss": train, "val_loss": [loss] * number}
    assert f"at each of {number} validations" in on_losses(curves).sentence
    assert on_losses(curves, is_rounded=True) is None or len(train) == 3, "a script rounds"
    fell = {**curves, "train_loss": [9.0, 8.1, 7.2, 6.3, 5.4, 4.5, 3.6, 2.7]}
    assert on_losses(fell) is None, "a validation_step that measures nothing"
    assert on_losses({"val_loss": [0.0] * number}) is None, "nothing is left to fall"


@given(held_out=st.sets(LOSSES, min_size=3, max_size=20))
def test_a_validation_loss_that_rises_alone_is_overfitting(held_out):
    assert on_losses({"train_loss": [0.5], "val_loss": sorted(held_out)}) is None


def test_noise_without_a_trend_seldom_has_a_warning():
    chance = random.Random(7)
    found = 0
    for _ in range(3000):
        level, noise = chance.uniform(0.01, 3), chance.uniform(0.001, 0.3)
        train, held_out = (
            [level * math.exp(chance.gauss(0, noise)) for _ in range(chance.randint(1, longest))]
            for longest in (200, 10)
        )
        found += on_losses({"train_loss": train, "val_loss": held_out}) is not None
    assert found <= 0.01 * 3000


def test_which_metrics_are_losses():
    names = ["train_loss_step", "loss/val", "Loss", "val_mse_loss", "loss_scale", "val_accuracy"]
    recorded = "".join(json.dumps({"step": 1, name: 2.5, "x": None}) + "\n" for name in names)
    assert list(read_losses(recorded.encode())) == names[:4]
    line = b'{"step": 3, "train_loss": null, "val_loss": 1e-05, "loss": true}\n{"train_loss":-2}\n[2]\n'
    curves = read_losses(line)
    assert math.isnan(curves["train_loss"][0])
    assert (curves["train_loss"][1], curves["val_loss"]) == (-2, [1e-5])


def classified(table: Sequence[Sequence[int]]) -> dict:
    names = [f"class {place}" for place in range(len(table))]
    return {
        "split": "test",
        "confusion": {"classes": names, "counts": [list(row) for row in table]},
    }


ROWS = st.lists(st.integers(0, 500), min_size=2, max_size=6)


@given(rows=ROWS, answer=st.integers(0, 5))
def test_one_answer_for_every_sample_has_a_warning(rows, answer):
    answer %= len(rows)
    table = [[number if place == answer else 0 for place in range(len(rows))] for number in rows]
    warning = on_evaluation(classified(table))
    is_known = sum(rows) >= MIN_SAMPLES and sum(map(bool, rows)) > 1
    assert (warning is not None) == is_known
    if warning:
        most = rows.index(max(rows))
        assert f'always answering "class {most}" ({max(rows) / sum(rows):.4g})' in warning.sentence


@given(rows=ROWS, wrong=st.floats(0, 0.2))
def test_a_classifier_that_is_mostly_right_has_no_warning(rows, wrong):
    table = [
        [number - int(wrong * number) if one == place else 0 for one in range(len(rows))]
        for place, number in enumerate(rows)
    ]
    for place, number in enumerate(rows):
        table[place][place - 1] += int(wrong * number)
    assert on_evaluation(classified(table)) is None, "also where one class is nearly all"


@given(seed=st.integers(0, 1000), classes=st.integers(2, 8))
def test_answers_by_chance_are_no_better_than_one_answer_or_nearly_so(seed, classes):
    chance = random.Random(seed)
    table = [[0] * classes for _ in range(classes)]
    for _ in range(400):
        table[chance.randrange(classes)][chance.randrange(classes)] += 1
    right, most = sum(table[c][c] for c in range(classes)), max(map(sum, table))
    warning = on_evaluation(classified(table))
    if right > most:
        assert warning is None
    elif right <= 400 / classes:  # not above chance
        assert warning


VALUES = st.lists(st.floats(-1e3, 1e3), min_size=MIN_SAMPLES, max_size=60)


def regressed(truth, predicted, num_samples=None) -> dict:
    mse = sum((a - b) ** 2 for a, b in zip(truth, predicted, strict=True)) / len(truth)
    return {
        "num_samples": num_samples or len(truth), "metrics": {"mse": mse},
        "residuals": {"truth": truth, "predicted": predicted},
    }  # fmt: skip


@given(truth=VALUES, shift=st.floats(-10, 10))
def test_a_regression_is_compared_with_its_mean(truth, shift):
    assume(max(truth) - min(truth) > 1)
    mean = sum(truth) / len(truth)
    assert on_evaluation(regressed(truth, [mean + shift] * len(truth))), "one value for every row"
    assert on_evaluation(regressed(truth, [2 * mean - value for value in truth])), "the wrong way"
    better = [mean + 0.6 * (value - mean) for value in truth]
    assert on_evaluation(regressed(truth, better)) is None
    assert on_evaluation(regressed(truth[:5], [mean] * 5)) is None, "too few to tell"
    assert on_evaluation(regressed([2.0] * 30, [2.0] * 30)) is None


def test_some_rows_of_many_prove_less():
    truth = [place / 100 for place in range(-150, 150)]
    guessed = [-0.02 * value for value in truth]  # R2 of -0.04 in these rows
    assert on_evaluation(regressed(truth, guessed, num_samples=10_000)) is None
    assert on_evaluation(regressed(truth, guessed))
    assert on_evaluation(regressed(truth, [0.0] * 300, num_samples=10_000)), "one value for all"


def test_figures_alone_claim_nothing():
    for document in (
        {},
        {"measured_by": "script", "metrics": {"accuracy": 0.1}},
        {"confusion": None},
    ):
        assert on_evaluation(document) is None


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(1e8, False), (1.1e8, True), (None, False), (math.nan, True), (math.inf, True), (3, False)],
)
def test_the_largest_weight(largest, expected):
    assert (on_weights({"weights": {"largest": largest}}) is not None) == expected


def test_parameters_are_weights_and_buffers_are_not(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {
        "net.weight": torch.tensor([[1.0, -7.5]]),
        "scale": torch.tensor(2e9, dtype=torch.bfloat16),
        "net.running_var": torch.tensor([1e12]),
        "mask": torch.tensor([-math.inf, 0.0]),
        "net.bias": torch.tensor([3.0], dtype=torch.float8_e4m3fn),
        "count.weight": torch.tensor([1 << 40]),
        "empty.weight": torch.empty(0),
    }
    save_file(tensors, path)
    assert largest_weight(path) == 7.5
    assert largest_weight(path, {"net.weight", "scale"}) == pytest.approx(2e9, rel=0.01)
    save_file({"mask": tensors["mask"]}, path)
    assert largest_weight(path) is None


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    provenance=st.dictionaries(
        st.sampled_from(["training", "weights"]),
        st.none() | st.integers() | st.dictionaries(st.sampled_from(["script", "largest"]), st.text('ab', max_size=3)),
    ),
    evaluation=st.dictionaries(
        st.sampled_from(["confusion", "residuals", "metrics", "num_samples"]),
        st.none() | st.integers() | st.text('ab', max_size=3)
        | st.dictionaries(
            st.sampled_from(["counts", "classes", "truth", "predicted"]),
            st.lists(st.none() | st.floats() | st.lists(st.integers())),
        ),
    ),
)  # fmt: skip
def test_damaged_files_are_no_error_and_do_not_hide_other_warnings(
    tmp_path_factory, provenance, evaluation
):
    metrics = tmp_path_factory.getbasetemp() / "rising.jsonl"
    lines = [json.dumps({"step": step, "train_loss": step}) for step in range(1, 9)]
    metrics.write_text("\n".join(lines) + '\n{"step": 9, "train_lo')
    found = read_warnings(metrics, provenance, evaluation)
    if isinstance(provenance.get("training"), dict | None):
        assert kinds(found)[:1] == ["loss"]
    assert read_warnings(Path("missing.jsonl"), {}, {}) == []


RISING = [json.dumps({"step": step, "epoch": 0, "train_loss": 2.0**step}) for step in range(1, 9)]


def test_ls_and_the_table_at_the_end_have_the_sentence(fake, capsys):
    from shardline.cli.display.upkeep_views import show_runs

    run = fake.run("flat")
    fake.seal_run(run)
    fake.seal_evaluation(run)
    assert final_rows(fake.load(), before=())[1]["note"] == ""
    (run.folder / "metrics.jsonl").write_text("\n".join(RISING))
    records = describe_runs(fake.load())
    assert [kinds_of["kind"] for kinds_of in records[1]["warnings"]] == ["loss"]
    assert records[0]["warnings"] == []
    assert records[1]["state"] == "done"
    sentence = records[1]["warnings"][0]["sentence"]
    assert "train_loss is 2 at first and 4 at its lowest since" in sentence
    show_runs(records)
    shown = capsys.readouterr().out
    assert f"flat warning: {sentence}" in shown
    assert "done, warning" in shown
    assert final_rows(fake.load(), before=())[1]["note"] == f"warning: {sentence}"


def test_the_page_marks_the_run_and_has_the_sentence_and_the_data(tmp_path):
    wild = {"weights": {"largest": 1e30}}
    runs = [
        write_run(tmp_path, "good"),
        write_run(tmp_path, "wild", accuracy=0.5, lines=RISING, provenance=wild),
    ]
    report = read_report(runs, generated_from="config/config.yaml")
    warned = {run.name: run.warnings for run in report.runs}
    assert warned["good"] == []
    assert [(one.kind, one.action.split("/")[0]) for one in warned["wild"]] == [
        ("loss", "train"),
        ("weights", "train"),
    ]
    page = render_page(report)
    assert page.count('<span class="pill warned">warning</span>') == 1
    for one in warned["wild"]:
        assert page.count(one.sentence.replace("'", "&#39;")) == 2, "leaderboard and details"
