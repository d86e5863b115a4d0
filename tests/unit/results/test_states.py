"""What there is of a run, from the files that a pipeline leaves."""

import json
from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.results.states import State, last_step, sealed_names, state_of
from shardline.supervision.attempt_log import last_recorded_step
from tests.support.fake_project import RUNS

HERE = ResultsLayout(root=Path())  # the present folder


def test_every_state_of_a_run(fake):
    fake.load()

    def state() -> State:
        return state_of(fake.run("flat"), sealed_names(HERE))

    assert state() is State.NEW
    fake.begin_training(fake.run("flat"), steps=3)
    assert state() is State.STOPPED
    fake.seal_run(fake.run("flat"))
    assert state() is State.TRAINED
    fake.seal_evaluation(fake.run("flat"))
    assert state() is State.DONE
    fake.rows[1]["optim.lr"] = 0.7
    assert state() is State.STALE


def test_the_last_step_is_read_past_a_torn_line(fake):
    run = fake.run("flat")
    assert last_step(run) is None
    fake.begin_training(run, steps=20_000)
    assert last_step(run) == 20_000


def test_a_run_is_known_by_all_the_names_that_it_has_had(fake):
    fake.rows.append({**RUNS[1], "name": "flat-2", "seed": 9})
    fake.seal_run(fake.run("flat-2"))
    assert sealed_names(HERE) == {"flat-2"}
    assert state_of(fake.run("flat"), sealed_names(HERE)) is State.NEW
    fake.rows[-1]["name"] = "flat-3"
    fake.load()
    assert sealed_names(HERE) == {"flat-2", "flat-3"}
    assert "flat" not in (fake.run("flat-3").folder / "run.json").read_text()


def test_the_last_step_is_read_from_a_line_that_is_longer_than_a_tail(fake):
    run = fake.run("flat")
    fake.begin_training(run, steps=3)
    path = Path("store/work", run.id, "metrics.jsonl")
    image = json.dumps({"step": 4, "logged": [{"name": "a", "png": "A" * 200_000}]})
    path.write_text(f'{{"step": 3}}\n{image}\n{image}')
    assert last_recorded_step(path.parent) == 4
