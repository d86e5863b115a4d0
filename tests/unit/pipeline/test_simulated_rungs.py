"""Studies that stop weak trials: the same choices whatever was disturbed, at the cost that theory gives."""

import json
import math
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.checkpoints.folder import list_saved, saving
from shardline.cli import app
from shardline.config.rungs import Brackets, Slot
from shardline.config.settings.config import RuntimeCheckpoint
from shardline.core.files import read_json, write_json
from shardline.core.seals import seal
from shardline.pipeline.invocation import record_project
from shardline.pipeline.training import _limit_states
from shardline.records.sweeps import Proposal, Seen, TrialResult
from shardline.results.sweeps.describe import best_trial, describe_trials
from shardline.results.sweeps.proposing import next_proposal
from shardline.results.sweeps.samplers import seed_of
from shardline.results.sweeps.stopping import forget_states, stops, waiting_runs
from shardline.results.sweeps.trials import (
    read_proposal,
    read_study,
    trials_so_far,
)
from shardline.results.verify import verify_target
from tests.support.simulated_study import Controller, value_at
from tests.support.studies import (
    NUMBER,
    load,
    outcome,
    run_of_pasted_row,
    undisturbed,
    write_config,
)
from tests.unit.results.test_sweeps import SPACES, plan_of, sphere, suggested

HALVING = {"halving": {"rungs": [1, 3, 9], "keep": 3}}
LONG = {"halving": {"rungs": [1, 3, 9, 27], "keep": 3}}
MEDIAN = {"median": {"rungs": [1, 3, 9], "startup_trials": 2}}


@given(
    seed=st.integers(0, 2**32),
    parallel=st.sampled_from([1, 3, {0: 2, 6: 5}]),
    sampler=st.sampled_from(["tpe", "random"]),
    stop=st.sampled_from([HALVING, MEDIAN]),
    first=st.integers(9, 12),
    is_stored=st.booleans(),
)
@settings(max_examples=NUMBER, deadline=None)
def test_kills_failures_order_and_extensions_change_neither_promotions_nor_choice(
    seed, parallel, sampler, stop, first, is_stored
):
    sweep = {"parallel": parallel, "sampler": sampler, "stop": stop}
    disturbed = outcome(
        seed, kill_rate=0.02, fault_rate=0.1, steps=(first, 13), is_stored=is_stored, **sweep
    )
    assert disturbed == undisturbed(json.dumps(sweep))
    assert disturbed[2] is not None


@pytest.mark.parametrize(
    ("parallel", "seeds", "mode"), [(1, 1, "min"), (8, 1, "max"), (4, 2, "min")]
)
def test_halving_trains_what_theory_says_and_finds_the_best_of_curves_that_do_not_cross(
    parallel, seeds, mode, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    sign = 1 if mode == "min" else -1
    project = load(
        trials=27, parallel=parallel, seeds=seeds, stop=LONG, sampler="random",
        objective={"metric": "val_loss", "mode": mode},
    )  # fmt: skip
    controller = Controller(
        project=project, seed=parallel, curve=lambda at, epoch: sign * (value_at(at) + 1 / epoch)
    )
    controller.run()
    plan = controller.plan
    trials = read_study(plan.summary(project.layout)).trials
    theory = 27 * 1 + 9 * 2 + 3 * 6 + 1 * 18
    assert sum(controller.epochs) == sum(one.steps for one in trials) == theory * seeds
    assert len(controller.trained) == (27 + 9 + 3 + 1) * seeds == len(set(controller.trained))
    best = min(trials, key=lambda one: value_at(one.settings))
    assert (best_trial(project, plan)[0].trial, best.rung) == (best.trial, 3)
    assert [sum(one.rung >= rung for one in trials) for rung in range(4)] == [27, 9, 3, 1]
    states = [one["state"] for one in describe_trials(project, plan)]
    assert (states.count("done"), states.count("stopped")) == (1, 26)
    # the winner is the run of the pasted row, whose schedule has no horizon
    run = run_of_pasted_row(controller, best.trial)
    assert run.id == best.runs[0]
    assert run.settings.trainer.max_epochs == 27


def test_the_schedule_of_each_rung_ends_where_that_of_the_last_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(
        trials=9, stop=HALVING, space={"schedule.name": ["cosine", "constant"]}, sampler="random"
    )
    controller = Controller(project=project)
    controller.run()
    layout = project.layout
    found = {
        path.parent.name: json.loads(path.read_text())
        for path in Path().glob("results/runs/*/state.json")
    }
    by_training: dict[str, list[int]] = {}
    for one in found.values():
        by_training.setdefault(one["rest"], []).append(one["epochs"])
    assert sorted(map(sorted, by_training.values()), key=len)[-1] == [1, 3, 9]
    assert read_proposal(controller.plan.proposal(layout, Slot(rung=2, place=0))).rung == 2


def test_a_trial_that_stopped_early_is_promoted_without_a_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(trials=9, stop=HALVING, sampler="random")
    controller = Controller(project=project, last_epoch=lambda settings: 2)
    controller.run()
    assert sorted(controller.epochs) == [1] * 9 + [1] * 3  # the rung of 9 epochs is that of 3
    best, _ = best_trial(project, controller.plan)
    assert best.rung == 2
    assert run_of_pasted_row(controller, best.trial).id == best.runs[0]


@pytest.mark.parametrize("stop", [HALVING, MEDIAN])
def test_failed_trials_are_the_worst_and_a_study_of_failures_ends(stop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(trials=9, stop=stop, sampler="tpe")
    controller = Controller(project=project, fails=lambda settings: "diverged")
    controller.run()
    study = read_study(controller.plan.summary(project.layout))
    assert study.best is None
    assert len(controller.trained) == 9
    assert all(one.failure for one in study.trials)


def test_verify_computes_promotions_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(trials=9, stop=HALVING, parallel=3)
    controller = Controller(project=project)
    controller.run()
    Path("results/runs").rename("elsewhere")  # the simulated runs have no sealed files
    assert verify_target(project, "study", controller.plan.id, deep=True).problems == []
    path = controller.plan.results(project.layout, 4)[0]
    write_json(path, seal({**read_json(path, remedy=""), "value": -5.0}))
    problems = verify_target(project, "study", controller.plan.id).problems
    assert any("trial r1-1: trial computed again is 4" in one for one in problems)


def test_commands_show_rungs_and_states_of_trials_that_wait_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sweep: dict[str, Any] = {"trials": 11, "sampler": "random", "stop": HALVING}
    project = load(**sweep)
    controller = Controller(project=project)
    controller.run()
    records = describe_trials(project, controller.plan)
    states = [one["state"] for one in records]
    assert states[9:] == ["waiting", "waiting"]  # one more trial would decide
    assert (states.count("done"), states.count("stopped")) == (1, 8)
    assert {one["epochs"] for one in records} == {1, 3, 9}
    waiting = {run for one in records[9:] for run in one["runs"]}
    assert waiting_runs(project) == dict.fromkeys(waiting, "s")
    write_config(**sweep)
    app(["ls", "--study", "s"], standalone_mode=False)
    text = capsys.readouterr().out
    assert "11 trials: 1 done, 8 stopped, 2 waiting" in text
    assert "3 epochs: 3 trials, the best is" in text


def test_states_go_once_no_promotion_can_choose_them_unless_a_row_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(trials=9, stop=HALVING, sampler="random")
    (plan,) = project.sweeps.values()
    for run, left in [("a" * 12, []), (plan.base, [5])]:
        checkpoints = project.layout.work(run) / "checkpoints"
        checkpoints.mkdir(parents=True)
        with saving(
            checkpoints, step=5, epoch=1, identity="b" * 64, world_size=1, keep=1
        ) as scratch:
            (scratch / "state.pt").write_bytes(b"state")
        forget_states(project, plan, run)
        assert [one.step for one in list_saved(checkpoints)] == left


@pytest.mark.parametrize("stop", [HALVING, MEDIAN])
def test_limits_of_kept_states_leave_those_that_a_longer_rung_continues(
    stop, tmp_path, monkeypatch
):
    """For `gc` and at the end of another training alike."""
    monkeypatch.chdir(tmp_path)
    project = load(trials=11, stop=stop, sampler="random")
    controller = Controller(project=project)
    controller.run()
    plan, layout = controller.plan, project.layout
    # the result of a training that has just sealed its run is not written yet
    for path in plan.results(layout, 3):
        path.unlink()
    trained = read_proposal(plan.proposal(layout, 3)).runs
    waiting = {one.runs[0] for one in trials_so_far(plan, layout) if one.trial > 8}
    expected = {*trained, *(waiting if plan.halving else ())} & {*controller.trained}
    for number, run in enumerate(controller.trained):
        checkpoints = layout.work(run) / "checkpoints"
        checkpoints.mkdir(parents=True)
        with saving(
            checkpoints, step=number, epoch=1, identity="b" * 64, world_size=1, keep=1
        ) as scratch:
            (scratch / "state.pt").write_bytes(b"state")
    limits = RuntimeCheckpoint(keep_days=1e-9, keep_bytes=1)
    record_project(project)
    _limit_states(layout, limits)
    left = {run for run in controller.trained if list_saved(layout.work(run) / "checkpoints")}
    assert left == expected
    assert {*waiting_runs(project)} >= expected
    assert expected


@pytest.mark.parametrize("mode", ["min", "max"])
def test_tpe_knows_of_stopped_trials_what_a_loop_of_optuna_reports(mode):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan = plan_of(
        SPACES[sphere], sampler="tpe", trials=25, parallel=1, objective={"mode": mode},
        stop={"median": {"rungs": [1, 3, 9], "startup_trials": 3}},
    )  # fmt: skip
    proposal: Proposal | None = None
    results: list[Any] = []
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    num_pruned = 0
    for number in range(plan.trials):
        proposal = next_proposal(plan, number, proposal, results)
        study.sampler = optuna.samplers.TPESampler(seed=seed_of(0, number))
        trial = study.ask()
        assert suggested(trial, sphere) == proposal.settings
        values: list[float] = []
        for rung, epochs in enumerate(plan.rungs):
            values.append(sphere(proposal.settings) + (number % 5) / epochs)
            trial.report(values[-1], epochs)
            if is_last := stops(plan, proposal.told, rung, values[-1]):
                break
        if is_last and len(values) < 3:
            num_pruned += 1
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, values[-1])
        *before, value = values
        results = [
            [TrialResult(study="", trial=number, rung=len(before), value=value, values=before)]
        ]
    assert 3 < num_pruned < 22


# --- the clock, and the rules by themselves -------------------------------------------------------


@given(
    keep=st.integers(2, 4),
    steps=st.lists(st.integers(1, 20), min_size=2, max_size=4),
    parallel=st.integers(1, 9),
    trials=st.integers(1, 90),
    more=st.integers(0, 30),
)
@settings(max_examples=100, deadline=None)
def test_what_a_proposal_knows_depends_on_no_later_trial(keep, steps, parallel, trials, more):
    rungs = [sum(steps[: number + 1]) for number in range(len(steps))]
    brackets = Brackets(rungs=rungs, keep=keep)
    news = brackets.news(trials, lambda trial: parallel)
    assert brackets.news(trials + more, lambda trial: parallel)[:trials] == news
    known = [one for new in news for one in new]
    assert len(set(known)) == len(known)
    order = {one: trial for trial, new in enumerate(news) for one in new}
    slots = {*range(trials), *brackets.slots(trials)}
    for slot, trial in order.items():
        assert slot in slots
        if isinstance(slot, int):
            assert slot < trial
        else:  # its candidates are known no later, and are earlier trials
            assert all(order[one] <= trial for one in brackets.needs(slot)[1])
    assert brackets.places(1, trials) == trials // keep


@pytest.mark.parametrize("parallel", [1, 4, 8])
def test_a_machine_with_as_many_places_does_not_idle(parallel):
    brackets = Brackets(rungs=[1, 3, 9, 27], keep=3)
    trials, costs = 81, [1, 2, 6, 18]
    news = brackets.news(trials, lambda trial: parallel)
    waits: dict[Any, set[Any]] = {
        trial: {one for new in news[: trial + 1] for one in new} for trial in range(trials)
    }
    for slot in brackets.slots(trials):
        before, new = brackets.needs(slot)
        waits[slot] = {*new}
        while before:
            waits[slot] |= {*brackets.needs(before)[1]}
            before = brackets.needs(before)[0]
    done: set[Any] = set()
    flying: list[tuple[int, str, Any]] = []
    now = 0
    while len(done) < len(waits):
        begun = {*done, *(one for *_, one in flying)}
        ready = [slot for slot in waits if slot not in begun and waits[slot] <= done]
        for slot in ready[: parallel - len(flying)]:
            cost = costs[slot.rung if isinstance(slot, Slot) else 0]
            heappush(flying, (now + cost, str(slot), slot))
        now, _, slot = heappop(flying)
        done.add(slot)
    work = 3 * 81
    # the last promotions wait for each other at the end of a study, as in theory
    assert now <= math.ceil(work / parallel) + sum(costs)


def test_the_median_rule_compares_with_earlier_trials_at_the_same_rung():
    plan = plan_of({"optim.lr": [0.1, 0.2]}, trials=20, stop=MEDIAN)
    told = [Seen(row=[0], value=0.2, values=[0.5, 0.2]), Seen(row=[0], value=0.9, values=[0.9])]
    assert not stops(plan, told[:1], 0, 5.0)  # two trials at the start
    assert stops(plan, told, 0, 0.71)
    assert not stops(plan, told, 0, 0.7)
    assert not stops(plan, told, 1, 5.0)  # one trial is at this rung
    failed = [*told, Seen(row=[0], value=None, values=[])]
    assert not stops(plan, failed, 0, 0.9)  # 0.5, 0.9 and the worst
    warm = plan_of(
        {"optim.lr": [0.1, 0.2]},
        trials=20,
        stop={"median": {**MEDIAN["median"], "warmup_rungs": 1}},
    )
    assert not stops(warm, told, 0, 5.0)
