"""What the config rejects of a sweep, with key, value and remedy, and what its identity contains."""

import re
from typing import Any

import pytest

from shardline.config.job_plan import read_plan, write_plan
from shardline.core.errors import CODE_ERROR, ConfigError, CrashLoop, Diverged, LaunchError, Stopped
from shardline.pipeline.sweep_jobs import is_own_failure
from shardline.supervision.supervisor import RankError
from tests.unit.pipeline.test_simulated_studies import SPACE, load

LR = {"optim.lr": {"log": [1e-4, 1e-1]}}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"base": "mpl"}, 'sweeps.s.base=mpl is not a run of config/runs.tsv; did you mean "mlp"?'),
    ({"sampler": "tep"}, 'sweeps.s.sampler=tep is no sampler, and no import path; did you mean "tpe"?'),
    ({"sampler": "nowhere.at:All"}, "sweeps.s.sampler=nowhere.at:All: no module nowhere.at"),
    ({"trials": None}, "sweeps.s.trials"),
    ({"objective": {"metric": "test_loss"}}, "objective.metric=test_loss is not named as a metric of the validation"),
    ({"objective": {"metric": "loss"}}, "name one such as val_loss"),
    ({"space": {"nodes": [1, 2]}}, "space.nodes decides the geometry; write a sweep for each value"),
    ({"space": {"environment": ["a", "b"]}}, "space.environment decides the environment"),
    ({"space": {"dataset": ["a", "b"]}}, "space.dataset decides the dataset"),
    ({"space": {"init_from": ["a", "b"]}}, "space.init_from decides the weights at the start; write a sweep for each"),
    ({"space": {"init.strict": [True, False]}}, "space.init.strict decides the weights at the start"),
    ({"space": {"average": [["a"]]}}, "space.average names other runs"),
    ({"space": {"checkpoint.mode": ["min", "max"]}}, "changes no validation metric"),
    ({"space": {"seed": [1, 2]}}, "set `seeds` for several trainings per trial"),
    ({"space": {"evaluation.batch": [1, 2]}}, "changes no validation metric"),
    ({"space": {"optim.lrr": [1]}}, 'space.optim.lrr is not a known setting; did you mean "optim.lr"?'),
    ({"space": {"optim.lr": [0.1, "fast"]}}, 'optim.lr="fast" is not a number'),
    ({"space": {"optim.lr": [0.1, 0.1]}}, "lists 0.1 twice; drop one"),
    ({"space": {"optim.lr": []}}, "optim.lr=[] is empty; list at least one value"),
    ({"space": {"optim.lr": {"log": [0, 1]}}}, "begins at 0.0, expected a number above 0"),
    ({"space": {"optim.lr": {"log": [1, 0.1]}}}, "write both, the lower first"),
    ({"space": {"optim.lr": {"uniform": [1e-4, 1], "log": [1e-4, 1]}}}, "sets uniform, log, expected exactly one"),
    ({"space": {"global_batch": {"uniform": [8, 64]}}}, "write int: [8, 64]"),
    ({"space": {"optim.lr": {"log": [1e-4, 1], "when": {"optim.name": "sgd"}}}}, "when.optim.name is not in the space"),
    ({"sampler": "grid", "space": LR}, "space.optim.lr is a range, of which a grid has no points; list values"),
    ({"sampler": "cmaes", "space": SPACE}, "cmaes varies only ranges without conditions"),
    ({"parallel": {1: 8}}, "lists no number for trial 0; write it as {0: 8, 60: 16}"),
    ({"parallel": {"0": 8, "later": 2}}, "parallel.later is not the number of a trial"),
    ({"parallel": 0}, "parallel=0"),
    ({"stop": {"median": 3}}, "sweeps.s.stop is not a known key"),
    ({"constraints": "nowhere:fits"}, "sweeps.s.constraints=nowhere:fits: no module nowhere"),
]  # fmt: skip


@pytest.mark.parametrize(("sweep", "sentence"), CASES, ids=lambda one: str(one)[:40])
def test_a_mistake_is_named_with_key_value_and_remedy(sweep, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(**sweep)


def test_two_conditions_may_not_need_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {
        "optim.lr": {"choices": [0.1], "when": {"optim.weight_decay": 0.0}},
        "optim.weight_decay": {"choices": [0.0], "when": {"optim.lr": 0.1}},
    }
    with pytest.raises(ConfigError, match="form a circle"):
        load(space=space)


SAME = [
    {"trials": 99},
    {"parallel": {0: 1, 5: 7}},
    {"space": {key: SPACE[key] for key in reversed(SPACE)}},
    {"space": {**SPACE, "optim.lr": {"log": ["1e-4", "1e-1"]}}},
]
OTHER = [
    {"parallel": 2}, {"seed": 1}, {"seeds": 2}, {"sampler": "random"}, {"space": LR},
    {"objective": {"metric": "val_acc", "mode": "max"}},
]  # fmt: skip


def test_the_identity_contains_what_decides_the_proposals_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (plain,) = load().sweeps
    assert {key for sweep in SAME for key in load(**sweep).sweeps} == {plain}
    others = [key for sweep in OTHER for key in load(**sweep).sweeps]
    assert len({plain, *others}) == len(OTHER) + 1


def test_a_trial_waits_for_the_results_that_far_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (plan,) = load(parallel={0: 2, 6: 5, 10: 1}, trials=12).sweeps.values()
    assert [plan.visible(trial) for trial in range(12)] == [0, 0, 1, 2, 3, 4, 4, 4, 4, 5, 10, 11]


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (Diverged("the loss is NaN"), True),
        (RankError("rank 0: NaN", kind="diverged", code=6), True),
        (RankError("rank 0: ValueError: no", code=CODE_ERROR), True),
        (RankError("rank 0: torch.OutOfMemoryError: CUDA out of memory"), True),
        (RankError("rank 0: killed", code=137, is_killed=True), False),
        (RankError("rank 1 hangs", kind="hung"), False),
        (RankError("rank 0: OSError: no space left"), False),
        (Stopped("preempted", 3), False),
        (CrashLoop("twice"), False),
        (LaunchError("no host"), False),
        (ConfigError("another torch"), False),
    ],
    ids=str,
)
def test_only_the_failure_of_the_training_itself_is_a_result(error, is_own):
    assert is_own_failure(error) == is_own


def test_a_job_is_given_the_sweeps_of_its_base_run_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(parallel={0: 2, 5: 3}, space={**SPACE, "optim.name": ["sgd", "adamw"]})
    (plan,) = project.sweeps.values()
    assert read_plan(write_plan(project.part(runs=[plan.base]))).sweeps == {plan.id: plan}
    assert plan.until_now(project.layout).ended == 0
