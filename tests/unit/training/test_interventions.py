"""What is done about a bad step: decided by the run alone."""

import json

import pytest

from shardline.config.settings.run_settings import Divergence
from shardline.errors import DataError, Diverged
from shardline.training.interventions import FILE, Plan, Trouble, read_plan, write_plan

IDENTITY = "a" * 64


def trouble(step, cause="the training loss is NaN"):
    return Trouble(step=step, epoch=2, rank=1, cause=cause, lr=0.01)


def extended(plan, step, **settings):
    known = Divergence(**{"policy": "skip", **settings})
    return plan.extended(trouble(step), known, "do something", "r")


def test_stopping_names_where_and_what_to_do():
    with pytest.raises(
        Diverged,
        match=r'run "r": the training loss is NaN at step 7 \(epoch 2, rank 1, lr 0.01\); do something',
    ):
        extended(Plan(), 7, policy="stop")


def test_skipping_leaves_out_a_window_of_steps():
    plan = extended(Plan(), 7, window_steps=3)
    assert [step for step in range(12) if plan.skips(step)] == [5, 6, 7]
    assert plan.lr_factor(6) == plan.lr_factor(99) == 1
    assert str(plan.interventions[0]).endswith("left out the update of steps 5 to 7")
    assert extended(Plan(), 2, window_steps=9).interventions[0].first == 1


def test_lowering_holds_from_the_window_on_and_adds_up():
    plan = extended(Plan(), 7, policy="lower", window_steps=3)
    plan = extended(plan, 20, policy="lower", window_steps=3)
    assert [plan.lr_factor(step) for step in (4, 5, 17, 18, 99)] == [1, 0.5, 0.5, 0.25, 0.25]
    assert not any(plan.skips(step) for step in range(30))


def test_trouble_right_after_a_window_began_before_it():
    """A gradient that is NaN under a good loss shows in the next step's loss alone."""
    first = extended(Plan(), 7)
    assert [step for step in range(12) if first.skips(step)] == [7]
    second = extended(first, 8)
    assert [step for step in range(12) if second.skips(step)] == [6, 7, 8]
    lowered = extended(extended(Plan(), 7, policy="lower"), 7, policy="lower")
    assert lowered.lr_factor(6) == 0.5
    assert extended(first, 9).interventions[1].first == 9, "further on it is another one"


def test_after_so_many_interventions_it_ends():
    plan = Plan()
    for step in (5, 15, 25):
        plan = extended(plan, step)
    with pytest.raises(Diverged, match=r"step 35 .*after 3 interventions \(divergence.limit\)"):
        extended(plan, 35)


def test_what_is_on_disk_is_the_plan_of_the_next_start(tmp_path):
    assert read_plan(tmp_path, IDENTITY) == Plan()
    plan = extended(extended(Plan(), 7), 20, policy="lower")
    write_plan(tmp_path, IDENTITY, plan)
    assert read_plan(tmp_path, IDENTITY) == plan
    with pytest.raises(
        DataError, match="belongs to a run with identity aaaaaaaaaaaa, expected bbbbbbbbbbbb"
    ):
        read_plan(tmp_path, "b" * 64)
    for damaged in ({}, {"identity": IDENTITY, "interventions": [{"step": 1}]}):
        (tmp_path / FILE).write_text(json.dumps(damaged))
        with pytest.raises(DataError, match="has not the form that the pipeline writes.*; delete"):
            read_plan(tmp_path, IDENTITY)
