"""The section of a study on the page: the best by validation, its held-out score, importance and charts."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from shardline.records.sweeps import ReportedStudy, Trial
from shardline.report import read_report
from shardline.report.charts.setting_axis import Axis
from shardline.report.charts.sweep_curves import best_so_far, slices
from shardline.report.sweep_views import view_sweep
from shardline.results.sweeps.importance import importance_of
from tests.support.report_runs import render, write_run
from tests.unit.results.test_sweeps import SPACES, plan_of, sphere

KEYS = ["optim.lr", "optim.momentum", "optim.name"]


def study(*runs: str) -> ReportedStudy:
    """Return a study of five trials: one failed, one was linked, and momentum is varied with sgd only."""
    values = [0.9, None, 0.3, 0.5, 0.31]
    trials = [
        Trial(
            trial=number,
            settings={"optim.lr": 10.0**-number, "optim.name": "sgd" if number % 2 else "adamw"}
            | ({"optim.momentum": 0.5} if number % 2 else {}),
            row=[],
            runs=[*runs, *["f" * 12] * 5][number - 2 : number - 1],
            value=value,
            seconds=None if number == 3 else 60.0,
            failure="" if value else "diverged at step 3",
        )
        for number, value in enumerate(values)
    ]
    return ReportedStudy(
        name="lr", study="a" * 12, sampler="tpe", planned=60, metric="val_loss", mode="min", keys=KEYS,
        trials=trials, best=2, importance={"optim.lr": 0.75, "optim.name": 0.25},
    )  # fmt: skip


def rows_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    (rows,) = spec["datasets"].values()
    return list(rows)


def test_the_page_says_that_the_best_is_of_so_many_and_whether_its_held_out_score_is_known(
    tmp_path,
):
    run = write_run(tmp_path, "one")
    page = render([run], generated_from="config/runs.tsv", sweeps=[study()])
    assert "Trial 2 is the best of 5 by validation: val_loss 0.3." in page
    assert "5 of 60 trials by tpe, 4 min of training; 1 without a value" in page
    assert "diverged at step 3" in page
    assert "shardline best lr" in page
    assert "75.0 %" in page
    key = json.loads(run.run.read_text())["run"]
    page = render([run], generated_from="config/runs.tsv", sweeps=[study(key)])
    assert "Its held-out score, evaluated once as one: accuracy" in page
    assert "shardline best lr" not in page


def test_a_report_without_sweeps_has_neither_key_nor_section(tmp_path):
    run = write_run(tmp_path, "one")
    assert not read_report([run], generated_from="config/runs.tsv").sweeps
    assert 'id="sweeps-title"' not in render([run], generated_from="config/runs.tsv")


def test_the_charts_show_the_best_so_far_by_cost_and_a_panel_per_setting():
    trials = study().trials
    (progress, cost) = best_so_far(trials, "val_loss", "min")["concat"]
    assert [panel["layer"][1]["encoding"]["x"]["field"] for panel in (progress, cost)] == [
        "trial",
        "cost",
    ]
    rows = rows_of(best_so_far(trials, "val_loss", "min"))
    assert [(row["trial"], row.get("best"), row["cost"]) for row in rows] == [
        (0, 0.9, 1),
        (1, None, 2),
        (2, 0.3, 3),
        (3, 0.3, 3),
        (4, 0.3, 4),
    ]
    highest = rows_of(best_so_far(trials, "val_loss", "max"))
    assert [row["best"] for row in highest if "best" in row] == [0.9] * 4
    spec = slices(trials, KEYS, "val_loss", {"optim.lr": True, "optim.momentum": False}, 2)
    assert [row["trial"] for row in rows_of(spec) if "ring" in row] == [2]
    panels = spec["concat"]
    assert [panel["layer"][0]["encoding"]["x"]["title"] for panel in panels] == [
        "optim.lr (log scale)",
        "optim.momentum",
        "optim.name",
    ]
    view = view_sweep(study(), [])
    assert view.parallel
    nothing = replace(study(), trials=[replace(one, value=None) for one in trials], best=None)
    assert (view_sweep(nothing, []).progress, view_sweep(nothing, []).slices) == (None, None)


def test_a_setting_with_names_keeps_its_points_and_a_range_has_round_ticks():
    (rows,) = (rows_of(slices(study().trials, KEYS, "val_loss", {}, None)),)
    assert {row["s2"] for row in rows} == {"sgd", "adamw"}
    axis = Axis("optim.momentum", [0.013, None, 0.47, 0.93], log=False)
    assert [tick["text"] for tick in axis.ticks(0)] == ["not set", "0.2", "0.4", "0.6", "0.8"]
    assert axis.at(None) < 0
    axis = Axis("optim.lr", [2e-4, 0.07, 0.003], log=True)
    assert [tick["text"] for tick in axis.ticks(0)] == ["0.001", "0.01"]


def test_the_importance_names_the_setting_that_decides():
    pytest.importorskip("optuna")
    plan = plan_of(
        {**SPACES[sphere], "model_args.z": {"uniform": [0, 1]}}, sampler="sobol", trials=32
    )
    from tests.unit.results.test_sweeps import proposed

    found = proposed(plan, lambda at: at["model_args.x"] ** 2)
    trials = [
        Trial(
            trial=one.trial,
            settings=one.settings,
            row=one.row,
            value=one.settings["model_args.x"] ** 2,
        )
        for one in found
    ]
    shares = importance_of(plan, trials)
    assert next(iter(shares)) == "model_args.x"
    assert shares["model_args.x"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importance_of(plan, trials[:3]) == {}


def test_rungs_are_listed_with_their_survivors_and_best_trials(tmp_path):
    values = [[0.9], [0.8, 0.4, 0.3], [0.7, 0.5], [], [0.95]]
    trials = [
        Trial(
            trial=number,
            settings={"optim.lr": 0.1},
            row=[],
            value=one[-1] if one else None,
            values=one,
        )
        for number, one in enumerate(values)
    ]
    found = replace(study(), trials=trials, rungs=[1, 3, 9], best=1)
    shown = [
        (one.length, one.ended, one.survivors, one.trial, one.value)
        for one in view_sweep(found, []).rungs
    ]
    assert shown == [(1, 4, 2, 2, 0.7), (3, 2, 1, 1, 0.4), (9, 1, 0, 1, 0.3)]
    run = write_run(tmp_path, "one")
    page = render([run], generated_from="config/runs.tsv", sweeps=[found])
    assert '<th scope="row">9 epochs</th><td>1</td><td>–</td><td>1</td>' in page
    assert "Rungs of lr" not in render([run], generated_from="config/runs.tsv", sweeps=[study()])
