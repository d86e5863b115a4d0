"""Folds: the mean and its interval, alone and with seeds, on the page and in `shardline ls`."""

import json
import math
import re
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shardline.core.intervals import fold_interval
from shardline.core.repeats import SeedRepeats, name_of_repeats
from shardline.report import RunFiles, read_report
from shardline.results.states import describe_runs
from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject
from tests.support.report_runs import render, write_run

GOOD = {0: [0.95, 0.96], 1: [0.91, 0.93], 2: [0.97, 0.98]}
# lower by almost the same in each fold, though folds differ by more
WORSE = {fold: [value - 0.02 - 0.001 * fold for value in values] for fold, values in GOOD.items()}
CLOSE = {0: [0.93, 0.93], 1: [0.95, 0.96], 2: [0.95, 0.97]}
SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=3)


def crossed(folder: Path, name: str, scores: dict[int, list[float]], lr: float) -> list[RunFiles]:
    """Write a run for each fold and seed."""
    return [
        write_run(
            folder, f"{name}_fold={fold}_seed={seed}", accuracy=value, lr=lr, seed=seed, fold=fold,
            num_samples=90 + fold, asked={"num_folds": 3},
        )
        for fold, values in scores.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def text_of(*runs: RunFiles) -> str:
    page = render([*runs], generated_from="config/runs.tsv")
    page = re.sub(r"<(script|style)\b[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def ranking(*runs: RunFiles) -> Any:
    report = read_report([*runs], generated_from="config/runs.tsv")
    (group,) = report.groups
    return group.ranking


@given(st.dictionaries(st.integers(0, 4), SCORES, min_size=2))
def test_a_mean_is_of_folds_with_the_corrected_variance(scores: dict[int, list[float]]) -> None:
    pairs = [(fold, value) for fold, values in scores.items() for value in values]
    repeats = SeedRepeats(values=[v for _, v in pairs], folds=[f for f, _ in pairs], num_folds=5)
    by_fold = [fmean(values) for values in scores.values()]
    assert repeats.mean == pytest.approx(fmean(by_fold))
    # Nadeau and Bengio: the test set is a quarter of the train set
    error = math.sqrt((1 / len(by_fold) + 1 / 4) * variance(by_fold))
    low, high = (
        fmean(by_fold) + sign * stats.t.ppf(0.975, len(by_fold) - 1) * error for sign in (-1, 1)
    )
    assert repeats.interval == pytest.approx((low, high))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=5))
def test_a_difference_is_paired_by_fold(pairs: list[tuple[float, float]]) -> None:
    old, new = ({fold: pair[side] for fold, pair in enumerate(pairs)} for side in (0, 1))
    differences = np.array([b - a for a, b in pairs])
    found = fold_interval(old, new, 5)
    if not variance(differences.tolist()):
        assert found is None
        return
    error = math.sqrt((1 / len(pairs) + 1 / 4) * variance(differences.tolist()))
    half = stats.t.ppf(0.975, len(pairs) - 1) * error
    assert found == pytest.approx((differences.mean() - half, differences.mean() + half))
    assert fold_interval(old, {0: 1.0}, 5) is None


def test_models_that_share_train_rows_need_the_correction() -> None:
    """The usual interval of a mean over five folds holds the true score too rarely."""
    random, hits = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(400):
        rows = random.normal(size=100)
        tested = np.array_split(rows, 5)
        # the error of a mean that was learnt on the other folds
        scores = [float(((of - np.setdiff1d(rows, of).mean()) ** 2).mean()) for of in tested]
        truth = 1 + 1 / 80
        for is_corrected in hits:
            folds = range(5) if is_corrected else ()
            found = SeedRepeats(values=scores, folds=folds, num_folds=5).interval
            assert found
            hits[is_corrected] += found[0] <= truth <= found[1]
    assert hits[True] > 380 > hits[False]


def test_folds_and_seeds_are_one_line_whose_interval_is_over_folds(tmp_path: Path) -> None:
    (row,) = ranking(*crossed(tmp_path, "cv", GOOD, 0.1))
    assert (row.title, row.num_measured, len(row.runs)) == ("cv", 6, 6)
    assert row.interval_method == "nadeau-bengio"
    assert row.mean == pytest.approx(fmean(map(fmean, GOOD.values())))
    text = text_of(*crossed(tmp_path, "cv", GOOD, 0.1))
    assert "3 folds x 2 seeds" in text
    assert "Mean of 3 folds x 2 seeds" in text
    assert "fold 2, seed 1" in text


def test_a_difference_is_clear_if_it_is_alike_in_each_fold(tmp_path: Path) -> None:
    runs = [*crossed(tmp_path, "a", GOOD, 0.1), *crossed(tmp_path, "b", WORSE, 0.3)]
    other = ranking(*runs)[1]
    assert (other.standing, other.judged_by) == ("apart", "folds")
    assert "the difference is larger than the spread between folds" in text_of(*runs)
    runs = [*crossed(tmp_path, "a", GOOD, 0.1), *crossed(tmp_path, "c", CLOSE, 0.9)]
    assert (ranking(*runs)[1].standing, ranking(*runs)[1].judged_by) == ("close", "folds")


def test_other_folds_are_other_samples_and_a_fixed_test_set_is_ranked_apart(tmp_path: Path) -> None:
    runs = [
        *crossed(tmp_path, "a", {0: [0.9]}, 0.1),
        *crossed(tmp_path, "b", {1: [0.5]}, 0.3),
    ]
    assert [row.standing for row in ranking(*runs)] == ["best", "unknown"]
    whole = write_run(tmp_path, "whole", accuracy=0.8)
    report = read_report([*runs, whole], generated_from="config/runs.tsv")
    assert [len(group.ranking) for group in report.groups] == [1, 2]


def test_the_page_gives_its_comparison_the_scores_by_fold(tmp_path: Path) -> None:
    page = render(crossed(tmp_path, "cv", GOOD, 0.1), generated_from="config/runs.tsv")
    found = re.search(r'"rows": ?\[\[[^\[]*?\{[^}]*\}, ?3\]\]', page)
    assert found
    (row,) = json.loads(f"{{{found[0]}}}")["rows"]
    assert row[3] == pytest.approx({str(fold): fmean(values) for fold, values in GOOD.items()})


def test_ls_prints_the_mean_of_folds_and_seeds(fake: FakeProject) -> None:
    fake.config["datasets"]["table"]["splits"] = {"folds": 3}
    fake.rows = [{**fake.rows[1], "name": "cv", "fold": "all", "seed": "[1, 2]"}]
    for run in fake.load().runs.values():
        fold, seed = run.settings.tested_fold, run.settings.seed
        assert fold is not None
        fake.seal_run(run)
        if (fold, seed) != (2, 2):
            fake.seal_evaluation(run, accuracy=GOOD[fold][seed - 1])
    mean = describe_runs(fake.load())[0]["mean"]
    by_fold = [0.955, 0.92, 0.97]
    assert mean["mean"] == pytest.approx(fmean(by_fold))
    assert (mean["name"], mean["over"]) == ("cv", "3 folds, 5 runs")
    text = shardline("ls").stdout
    assert "cv: accuracy 0.9483, mean of 3 folds, 5 runs, 95 % interval 0.8476 to 1.000" in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cv_fold=0", "cv_fold=1"], "cv"),
        (["cv_seed=1_fold=0", "cv_seed=2_fold=1"], "cv"),
        (["cv_lr=0.1_fold=0", "cv_lr=0.1_fold=1"], "cv_lr=0.1"),
    ],
)
def test_repeats_over_folds_are_called_by_what_their_names_share(
    names: list[str], expected: str
) -> None:
    assert name_of_repeats(names) == expected
