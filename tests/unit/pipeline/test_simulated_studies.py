"""A study ends with the same proposals and the same choice, whatever ended first, failed or was killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.core.errors import ConfigError
from shardline.pipeline.terminal_rows import final_rows, finished
from shardline.results.sweeps.trials import read_study
from tests.support.simulated_study import Controller, value_at
from tests.support.studies import NUMBER, SPACE, elsewhere, load, outcome, some_fail, undisturbed

# Of samplers that cannot vary this space.
OTHER_SPACES: dict[str, dict[str, Any]] = {
    "cmaes": {key: SPACE[key] for key in ("optim.lr", "optim.weight_decay")},
    "grid": {"optim.lr": [10 ** (-1 - place / 4) for place in range(13)]},
}


@given(
    seed=st.integers(0, 2**32),
    parallel=st.sampled_from([1, 3, {0: 2, 6: 5}]),
    sampler=st.sampled_from(["tpe", "random", "sobol", "cmaes", "grid"]),
    seeds=st.sampled_from([1, 2]),
    first=st.integers(1, 12),
    is_stored=st.booleans(),
)
@settings(max_examples=NUMBER, deadline=None)
def test_kills_failures_order_and_extensions_change_neither_proposals_nor_choice(
    seed, parallel, sampler, seeds, first, is_stored
):
    space = OTHER_SPACES.get(sampler, SPACE)
    sweep = {"parallel": parallel, "sampler": sampler, "seeds": seeds, "space": space}
    disturbed = outcome(
        seed, kill_rate=0.02, fault_rate=0.1, steps=(first, 13), is_stored=is_stored, **sweep
    )
    assert disturbed == undisturbed(json.dumps(sweep))
    proposals, results, best = disturbed
    assert best is not None
    assert any(failure for *_, failure in results) or len(results) < 20 or sampler == "cmaes"
    assert len({str(one[0]) for one in proposals}) == 13


def test_a_kill_at_any_operation_on_a_file_changes_nothing():
    def run(at: int | None = None) -> tuple[Any, int]:
        with elsewhere():
            controller = Controller(
                project=load(sampler="random", trials=3, parallel=2), fails=some_fail, kill_at=at
            )
            controller.run()
            # after the last rename, the study is whole
            assert controller.starts <= (1 if at is None else 2)
            return controller.outcome(), controller.operations

    whole, number = run()
    assert number > 50
    for at in range(0, number, 1 if NUMBER >= 100 else 9):
        assert run(at)[0] == whole, f"operation {at}"


def test_two_trials_with_equal_settings_side_by_side_train_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"sampler": "random", "space": {"model_args.hidden": [32, 64]}, "parallel": 6}
    controller = Controller(project=load(**few, trials=6))
    controller.run()
    trials = read_study(controller.plan.summary(controller.project.layout)).trials
    assert len(controller.trained) == 2
    assert sum(one.linked for one in trials) == 4
    assert sum(one.seconds or 0.0 for one in trials) == 4.0


def test_the_best_has_the_lowest_mean_and_failures_are_told_as_failures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    controller = Controller(project=load(seeds=2), fails=some_fail)
    controller.run()
    study = read_study(controller.plan.summary(controller.project.layout))
    by_hand = {
        one.trial: value_at(one.settings) + 1.5 / 1000 + 0.2
        for one in study.trials
        if not some_fail(one.settings)
    }
    assert {one.trial: one.value for one in study.trials if one.value is not None} == pytest.approx(
        by_hand
    )
    assert study.best == min(by_hand, key=by_hand.__getitem__)
    failed = [one for one in study.trials if one.value is None]
    assert failed
    assert all(one.failure for one in failed)
    assert len(controller.trained) == 26


def test_a_run_that_is_sealed_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = {"sampler": "grid", "space": {"optim.lr": [0.1, 0.01, 0.001]}}
    first = Controller(project=load(**grid, trials=2))
    first.run()
    second = Controller(project=load(**grid, trials=3, seed=1))
    second.run()
    trials = read_study(second.plan.summary(second.project.layout)).trials
    assert [one.linked for one in trials] == [True, True, False]
    assert second.trained == trials[2].runs
    assert [one.seconds for one in trials] == [None, None, 2.0]


def test_a_failure_from_outside_stops_the_study_and_is_no_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    controller = Controller(project=load(trials=3), fault_rate=0.6, seed=3)
    controller.run()
    assert controller.starts > 1
    assert not any(failure for *_, failure in controller.outcome()[1])


def test_constraints_and_impossible_settings_are_not_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("limits.py").write_text(
        "def fits(settings):\n    return settings['model_args.hidden'] < 100\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    controller = Controller(project=load(constraints="limits:fits"))
    controller.run()
    proposals = controller.outcome()[0]
    assert {one[0]["model_args.hidden"] for one in proposals} == {32, 64}
    assert not any(is_excluded for _, _, _, is_excluded, *_ in proposals)
    # 6 devices' worth of samples never divide by 4 micro-batches of 5
    impossible = {"global_batch": [32, 50], "trainer.accumulate": [1, 4]}
    controller = Controller(project=load(sampler="grid", space=impossible, trials=4))
    controller.run()
    trials = read_study(controller.plan.summary(controller.project.layout)).trials
    assert [bool(one.failure) for one in trials] == [False, False, False, True]
    assert "global_batch=50" in trials[3].failure
    assert not trials[3].runs


def test_a_constraint_that_raises_is_named_with_its_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bounds.py").write_text("def fits(settings):\n    return settings['optim.momentum'] < 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"constraints=bounds:fits raised KeyError: 'optim.momentum'"
    ):
        Controller(project=load(constraints="bounds:fits")).run()


def test_another_number_of_parallel_trials_needs_its_own_first_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Controller(project=load(trials=5, parallel=2)).run()
    assert load(parallel={0: 2, 5: 4}).sweeps.keys() == load(parallel=2).sweeps.keys()
    with pytest.raises(ConfigError, match=r"set parallel: \{0: 2, 5: 3\}"):
        Controller(project=load(trials=9, parallel={0: 2, 3: 3})).run()


def test_the_final_table_has_a_row_for_a_study_that_ended_in_this_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    controller = Controller(project=load(trials=6, sampler="random"), fails=some_fail)
    project, plan = controller.project, controller.plan
    assert final_rows(project, finished(project, Path.exists))[-1]["headline"] == (
        "0 of 6 trials, none with a value"
    )
    controller.run()
    *_, row = final_rows(project, before=())
    study = read_study(plan.summary(project.layout))
    best, failed = study.trials[study.best], sum(bool(one.failure) for one in study.trials)
    assert (row["title"], row["done"]) == ("s (sweep)", True)
    assert row["headline"] == f"val_loss {best.value:#.4g}, the best of 6 trials"
    assert failed
    assert row["note"].splitlines() == [
        f"{failed} failed: `shardline ls --study s` lists why",
        f"`shardline best s` prints trial {study.best} as a row of the run table",
    ]
    assert f"logs/train_trial/{plan.id}-0-0.log" in row["logs"]
    again = final_rows(project, finished(project, Path.exists))
    assert [one["title"] for one in again] == ["mlp"]


def test_a_study_whose_trials_all_failed_ends_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(trials=3, sampler="random")
    Controller(project=project, fails=lambda settings: "diverged").run()
    *_, row = final_rows(project, before=())
    assert row["headline"] == "3 of 3 trials, none with a value"
    assert row["note"].startswith(
        "warning: all of its trials failed, trial 0 with: rank 0: diverged"
    )
