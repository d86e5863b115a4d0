"""Repeats with other seeds: their means and intervals, and when a difference may be claimed."""

import json
import re

import pytest
from scipy import stats

from shardline.core.intervals import seed_interval
from shardline.core.repeats import SeedRepeats, name_of_repeats
from shardline.report import read_report
from tests.support.report_runs import render, write_run

TIGHT = (0.951, 0.953, 0.952)
LOWER = (0.931, 0.934, 0.932)
WIDE = (0.91, 0.97, 0.94)


def repeated(folder, name, values, lr):
    return [
        write_run(folder, f"{name}_seed={seed}", accuracy=value, seed=seed, lr=lr)
        for seed, value in enumerate(values)
    ]


def ranking(*runs):
    report = read_report(runs, generated_from="config/runs.tsv")
    assert len(report.groups) == 1
    return report.groups[0].ranking


def text_of(*runs):
    page = render(runs, generated_from="config/runs.tsv")
    page = re.sub(r"<(script|style)\b[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


@pytest.mark.parametrize("values", [TIGHT, LOWER, WIDE, (0.5, 0.9)])
def test_interval_of_a_mean_is_students(values):
    expected = stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    assert SeedRepeats(values=values).interval == pytest.approx(expected)


def test_interval_stays_within_what_the_metric_can_be():
    interval = SeedRepeats(values=(0.9, 1.0), bounds=(0.0, 1.0)).interval
    assert interval is not None
    assert interval[1] == 1.0


@pytest.mark.parametrize(("one", "other"), [(TIGHT, LOWER), (TIGHT, WIDE), ((0.5, 0.9), WIDE)])
def test_interval_of_a_difference_is_welchs(one, other):
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    found = seed_interval(other, one)
    assert found == pytest.approx((expected.low, expected.high))


def test_one_value_or_no_spread_has_no_interval_over_seeds():
    single, same = SeedRepeats(values=(0.9,)), SeedRepeats(values=(0.9, 0.9))
    assert single.interval is None
    assert seed_interval(TIGHT, single.values) is None
    assert seed_interval(same.values, same.values) is None


def test_runs_that_differ_in_the_seed_alone_are_one_line_with_mean_and_spread(tmp_path):
    runs = [
        *repeated(tmp_path, "mlp_lr=0.1", TIGHT, 0.1),
        write_run(tmp_path, "one", accuracy=0.9, lr=1.0),
    ]
    first, second = ranking(*runs)
    assert first.title == "mlp_lr=0.1"
    assert (first.num_measured, len(first.runs)) == (3, 3)
    assert first.mean == pytest.approx(0.952)
    assert first.sd == pytest.approx(0.001)
    assert first.interval_method == "student-t"
    assert (second.num_measured, second.sd, second.interval_method) == (1, None, "wilson")
    assert "95.2 % ± 0.1 %" in text_of(*runs)


def test_a_difference_beyond_seed_noise_is_clear(tmp_path):
    runs = [*repeated(tmp_path, "a", TIGHT, 0.1), *repeated(tmp_path, "b", LOWER, 0.3)]
    other = ranking(*runs)[1]
    assert (other.standing, other.judged_by) == ("apart", "seeds")
    assert other.difference_from_best[1] < 0
    # the intervals of one run's held-out sample overlap by far, so seeds it must be that tell
    text = text_of(*runs)
    assert (
        "The other setting is clearly lower: the difference is larger than the spread between seeds."
        in text
    )
    assert "b ≈ best" not in text


def test_a_difference_within_seed_noise_is_said_to_be_too_small(tmp_path):
    runs = [*repeated(tmp_path, "a", TIGHT, 0.1), *repeated(tmp_path, "b", WIDE, 0.3)]
    other = ranking(*runs)[1]
    assert (other.standing, other.judged_by) == ("close", "seeds")
    low, high = other.difference_from_best
    assert low < 0 < high
    assert (
        "The other setting is not clearly lower: the difference is within the spread between seeds."
        in text_of(*runs)
    )


def test_without_repeats_the_held_out_sample_judges_and_the_page_says_so(tmp_path):
    runs = [
        *repeated(tmp_path, "a", TIGHT, 0.1),
        write_run(tmp_path, "b", accuracy=0.95, lr=0.3),
        write_run(tmp_path, "c", accuracy=0.6, lr=0.9),
    ]
    assert [(row.standing, row.judged_by) for row in ranking(*runs)] == [
        ("best", None), ("close", "sampling"), ("apart", "sampling"),
    ]  # fmt: skip
    text = text_of(*runs)
    assert "1 of the other 2 settings is not clearly lower" in text
    assert "the noise of the held-out samples. The spread between seeds is unknown" in text


def test_nothing_is_claimed_where_nothing_tells_the_noise(tmp_path):
    def error(name, mse, lr):
        headline = {"metric": "mse", "value": mse, "mode": "min"}
        return write_run(
            tmp_path, name, lr=lr, evaluation={"headline": headline, "confusion": None}
        )

    runs = [error("low", 3.25, 0.1), error("high", 9.5, 0.3)]
    assert [row.standing for row in ranking(*runs)] == ["best", "unknown"]
    text = text_of(*runs)
    assert "No difference is claimed: the noise of the mse is unknown." in text
    assert "clearly" not in text.partition("Leaderboard")[0].partition("noise unknown")[2]


def test_the_first_screen_says_what_the_lead_is_worth(tmp_path):
    alone = repeated(tmp_path, "a", TIGHT, 0.1)
    assert "There is no other setting with a score to compare with." in text_of(*alone)
    tied = [write_run(tmp_path, f"t{lr}", lr=lr, accuracy=0.9) for lr in (0.2, 0.3)]
    assert "Two runs share the best score." in text_of(*tied)
    lower = write_run(tmp_path, "low", lr=0.9, accuracy=0.5)
    text = text_of(tied[0], lower)
    assert "clear lead, seeds not repeated" in text
    assert "−40.0 points, clear" in text
    assert "2 of 2 finished" in text
    assert "2 of 2 sealed" in text
    assert "2 of 2 from committed code" in text


@pytest.mark.parametrize("changed", ["code", "model", "inputs", "environment"])
def test_runs_that_differ_in_more_than_the_seed_are_no_repeats(tmp_path, changed):
    one = write_run(tmp_path, "one", seed=1)
    two = write_run(tmp_path, "two", seed=2)
    document = json.loads(two.identity.read_text())
    two.identity.write_text(json.dumps({**document, changed: {"another": "aa"}}))
    assert [len(row.runs) for row in ranking(one, two)] == [1, 1]


def test_the_same_seed_again_is_no_repeat(tmp_path):
    """Two equal runs would make the spread too small."""
    runs = [write_run(tmp_path, name, seed=1) for name in ("one", "two")]
    assert [len(row.runs) for row in ranking(*runs)] == [1, 1]


def test_a_seed_that_failed_is_left_out_of_the_mean_and_stays_in_sight(tmp_path):
    runs = repeated(tmp_path, "a", TIGHT, 0.1)
    headline = {"metric": "accuracy", "value": None, "mode": "max"}
    failed = write_run(tmp_path, "a_seed=9", seed=9, lr=0.1, evaluation={"headline": headline})
    row = ranking(*runs, failed)[0]
    assert (row.num_measured, len(row.runs)) == (3, 4)
    assert row.mean == pytest.approx(0.952)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["mlp_seed=1", "mlp_seed=2"], "mlp"),
        (["mlp_lr=0.1_seed=1_x=2", "mlp_lr=0.1_seed=2_x=2"], "mlp_lr=0.1_x=2"),
        (["first", "again"], "first and 1 more"),
        (["alone_seed=3"], "alone"),
    ],
)
def test_repeats_are_called_by_what_their_names_share(names, expected):
    assert name_of_repeats(names) == expected
