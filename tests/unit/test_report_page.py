"""What the page says of which weights, which data and which curves."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.report.leaderboard import titles_of
from tests.support.report_runs import render, write_run

CHECKPOINT = {"monitor": "val_loss", "mode": "min"}


def page_of(*runs) -> str:
    return render(list(runs), generated_from="config/runs.tsv")


def lines(**curves):
    """Return a metrics.jsonl of these curves, validated every ten steps."""
    steps = range(10, 10 * len(next(iter(curves.values()))) + 1, 10)
    return [
        json.dumps({"step": step, **{name: values[at] for name, values in curves.items()}})
        for at, step in enumerate(steps)
    ]


def test_the_validation_that_is_shown_is_of_the_sealed_weights(tmp_path):
    run = write_run(
        tmp_path, "one",
        lines=lines(val_loss=[0.9, 0.4, 0.5, 0.6], val_accuracy=[0.5, 0.7, 0.8, 0.9]),
        run={"settings": {"seed": 7, "checkpoint": CHECKPOINT}},
        provenance={"training": {"best_score": 0.4, "steps": 40, "epochs": 4}},
    )  # fmt: skip
    page = page_of(run)
    assert '<td class="num" role="cell" data-label="Validation" data-value="0.7">70.0 %' in page
    assert "accuracy, step 20" in page


def test_without_a_sealed_score_the_best_validation_is_shown(tmp_path):
    page = page_of(write_run(tmp_path, "one", lines=lines(val_accuracy=[0.5, 0.9, 0.8])))
    assert "accuracy, step 20" in page


KEYS = st.sets(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from(["0a", "0b"]), st.sampled_from(["test", "valid"]),
        st.sampled_from(["accuracy", "loss"]), st.sampled_from(["max", "min"]),
    )
)  # fmt: skip


@given(KEYS)
def test_no_two_groups_have_one_title(keys):
    titles = titles_of(keys)
    assert len(set(titles.values())) == len(keys)
    assert all(title.startswith(key[0]) for key, title in titles.items())


def test_the_title_of_a_dataset_that_alone_has_its_name_is_its_name():
    keys = [("a", "0a", "test", "accuracy", "max"), ("b", "0b", "test", "accuracy", "max")]
    assert list(titles_of(keys).values()) == ["a", "b"]


def test_one_dataset_by_two_metrics_gives_two_cards_of_their_own_titles(tmp_path):
    runs = [
        write_run(
            tmp_path, f"{dataset}-{metric}",
            run={"dataset": {"id": dataset}},
            evaluation={"headline": {"metric": metric, "value": 0.5, "mode": "max"}},
        )
        for dataset, metric in product(("0a", "0b"), ("accuracy", "f1"))
    ]  # fmt: skip
    page = page_of(*runs)
    for title in ("digits (0a, accuracy)", "digits (0a, f1)", "digits (0b, f1)"):
        assert page.count(f'<p class="muted">{title}</p>') == 1


@pytest.mark.parametrize(("values", "is_drawn"), [([2.0, 1.0], True), ([None, None], False)])
def test_metrics_of_other_names_are_drawn_and_nothing_is_said_to_be_missing(
    tmp_path, values, is_drawn
):
    page = page_of(write_run(tmp_path, "one", lines=lines(perplexity=values)))
    assert ('<figure class="curves" id="group-1-curves"' in page) == is_drawn
    assert ("No run on this dataset recorded a finite value" in page) != is_drawn


def test_the_drawing_of_an_interval_has_room_for_its_dot_at_both_ends(tmp_path):
    page = page_of(write_run(tmp_path, "one", accuracy=1.0), write_run(tmp_path, "two"))
    assert 'viewBox="-4 0 92 12"' in page
    assert '<circle cx="84.0" cy="6" r="3.5"/>' in page
