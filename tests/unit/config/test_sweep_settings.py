"""What the config rejects of a sweep, with key, value and remedy, and what its identity contains."""

import re
from typing import Any

import pytest
from msgspec import UNSET

from shardline.config.job_plan import read_plan, write_plan
from shardline.config.load import load_variant
from shardline.config.sweep_values import notes_of
from shardline.core.errors import CODE_ERROR, ConfigError, CrashLoop, Diverged, LaunchError, Stopped
from shardline.pipeline.sweep_jobs import is_own_failure
from shardline.supervision.supervisor import RankError
from tests.support.studies import SPACE, load

LR = {"optim.lr": {"log": [1e-4, 1e-1]}}
STOP = {"halving": {"rungs": [1, 3], "keep": 3}}
SGD = {"optim.name": ["sgd", "adam"]}
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
    ({"stop": {"median": 3}}, "sweeps.s.stop.median=3"),
    ({"stop": {}}, "sweeps.s.stop sets nothing, expected halving or median; keep one of them"),
    ({"stop": {"halving": {"rungs": [1, 3]}, "median": {"rungs": [1, 3]}}}, "stop sets halving and median"),
    ({"stop": {"halving": {"rungs": [3, 1, 3]}}}, "rungs=[3, 1, 3], expected numbers of epochs that rise; write"),
    ({"stop": {"halving": {"rungs": [3]}}}, "sweeps.s.stop.halving.rungs"),
    ({"stop": {"median": {"rungs": {"steps": [9, 3]}}}}, "expected numbers of steps that rise; write [3, 9]"),
    ({"stop": {"halving": {"rungs": {"steps": [3]}}}}, "sweeps.s.stop.halving.rungs.steps"),
    ({"stop": {"halving": {"rungs": [1, 3], "keep": 1}}}, "sweeps.s.stop.halving.keep=1"),
    ({"stop": {"halving": {"rungs": [1, 3, 9, 27]}}}, "trials=13 brings no trial to the last rung, which needs keep"),
    ({"stop": STOP, "space": {"trainer.max_epochs": [1, 2]}}, "space.trainer.max_epochs is the length of a training"),
    ({"stop": {"median": {"rungs": [1, 3]}}, "seeds": 2}, "seeds=2, but stop.median compares single trainings"),
    ({"constraints": "nowhere:fits"}, "sweeps.s.constraints=nowhere:fits: no module nowhere"),
    ({"constraints": "limits.fits"}, "constraints=limits.fits is no import path; name module and function"),
    ({"parallel": {"0": 2, "00": 4}}, "parallel lists trial 0 twice, as 0 and 00; drop one"),
    ({"objective": {"metric": "val/acc"}}, "objective.mode=min would search for the worst val/acc"),
    ({"space": {"optim.lr": [1, 2], "optim": [{}]}}, "space.optim.lr is a part of optim, which the space varies too"),
    ({"space": {**SGD, "optim.momentum": {"uniform": [0, 0.9], "when": {"optim.name": "lion"}}}},
     'when.optim.name="lion" is none of the values of optim.name, which are "sgd", "adam"; name one of them'),
    ({"space": {**SGD, "optim.momentum": {"uniform": [0, 0.9], "when": {"optim.name": []}}}},
     "when.optim.name=[] is empty, so optim.momentum is never varied"),
    ({"space": {**LR, "optim.momentum": {"uniform": [0, 0.9], "when": {"optim.lr": 0.1}}}},
     "when.optim.lr: optim.lr is a range of real numbers"),
    ({"space": {"optim.momentum": [0.1, 0.2]}}, "optim.momentum has no effect, since optim.name=adam has no momentum"),
    ({"space": {"data.workers": [1, 2]}}, "space.data.workers changes no result: 1 and 2 are the same run"),
    ({"space": {"schedule.epochs": [2, 3]}}, "none of 16 drawn settings can be trained, for example"),
    ({"sampler": "grid", "space": {f"model_args.a{i}": [*range(10)] for i in range(8)}, "trials": UNSET},
     "space is a grid of 100,000,000 points, expected at most 100,000; list fewer values"),
    ({"sampler": "grid", "space": {"optim.lr": [1, 2]}, "stop": STOP, "trials": UNSET},
     "space is a grid of 2 points and brings no trial to the last rung, which needs keep ** 1 = 3; list more values"),
    *(({"stop": STOP, "space": {f"trainer.{key}": [1, 2]}}, f"space.trainer.{key} decides where a training validates")
      for key in ("min_epochs", "min_steps", "validate_every_epochs", "val_check_interval")),
    ({"stop": {"median": {"rungs": [1, 3], "warmup_rungs": 1}}}, "leaves none where a trial could stop"),
]  # fmt: skip


@pytest.mark.parametrize(("sweep", "sentence"), CASES, ids=lambda one: str(one)[:40])
def test_a_mistake_is_named_with_key_value_and_remedy(sweep, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(**sweep)


BASES = [
    (
        {"trainer.max_steps": 9},
        "counts epochs, but base=mlp ends at trainer.max_steps=9; write rungs: {steps: [1, 3, 9]}",
    ),
    ({"trainer.validate_every_epochs": 2}, "base=mlp validates every 2 epochs, and not after 1"),
    ({"trainer.val_check_interval": 0.5}, "sets trainer.val_check_interval=0.5"),
    ({"trainer.min_epochs": 2}, "begins before trainer.min_epochs=2 of base=mlp"),
    ({"model": "own:Net"}, "own:Net reads self.trainer.max_epochs, which differs between rungs"),
]


@pytest.mark.parametrize(("row", "sentence"), BASES, ids=lambda one: str(one)[:40])
def test_a_base_whose_longer_rungs_continue_no_shorter_one_is_named(
    row, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(READS)
    cells = {"name": "mlp", "dataset": "digits", "model": "mlp", **row}
    table = "\n".join("\t".join(map(str, line)) for line in (cells, cells.values()))
    monkeypatch.setattr("tests.support.studies.TABLE", f"{table}\n")
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(stop=STOP)
    if row.get("model") != "own:Net":
        assert load().sweeps


STEPS = {"halving": {"rungs": {"steps": [2, 6]}, "keep": 3}}


def test_a_rung_of_steps_does_not_begin_before_the_least_steps_of_the_base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = "name\tdataset\tmodel\tdevices\ttrainer.max_steps\ttrainer.min_steps\nmlp\tdigits\tmlp\t1\t6\t{}\n"
    monkeypatch.setattr("tests.support.studies.TABLE", cells.format(3))
    sentence = "rungs={steps: [2, 6]} begins before trainer.min_steps=3 of base=mlp; lower that number, or raise the"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(stop=STEPS)
    monkeypatch.setattr("tests.support.studies.TABLE", cells.format(2))
    assert load(stop=STEPS).sweeps


@pytest.mark.parametrize(
    ("base", "space", "sentence"),
    [
        (
            "mean",
            LR,
            "base=mean is an average of other runs, which trains nothing; name a run that trains",
        ),
        (
            "own",
            LR,
            "space.optim.lr has no effect, since model=own:Net has its own configure_optimizers; vary an",
        ),
        ("own", {"model_args.hidden": [8, 16]}, ""),
    ],
)
def test_a_base_run_that_does_nothing_with_the_settings_is_named(
    base, space, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    rows = [
        "name\tdataset\tmodel\tdevices\tseed\taverage", "mlp\tdigits\tmlp\t1\t1\t", "two\tdigits\tmlp\t1\t2\t",
        "mean\tdigits\tmlp\t1\t\t[[run:mlp, run:two]]", "own\tdigits\town:Net\t1\t\t",
    ]  # fmt: skip
    monkeypatch.setattr("tests.support.studies.TABLE", "\n".join([*rows, ""]))
    if not sentence:
        assert load(base=base, space=space).sweeps
        return
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(base=base, space=space)


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({}, ""),
        ({"sampler": "grid", "space": {"optim.lr": [0.1, 0.2]}}, "trials=13, but the grid has 2 points"),
        (
            {"sampler": "grid", "space": {"optim.lr": [0.1, 0.2], "optim.weight_decay": [0, 0.1]}, "trials": 2},
            "takes the first of the grid's 4 points; optim.lr does not vary; leave",
        ),
        ({"space": {"optim.lr": [0.1, 0.2]}}, "trials=13, but the space has 2 points"),
        ({"parallel": 13}, "parallel=13 proposes all 13 trials before any has a result"),
        ({"parallel": 13, "sampler": "random"}, ""),
        ({"objective": {"mode": "max"}}, "searches for the highest val_loss; set mode: min if lower"),
        ({"stop": {"median": {"rungs": [1, 20], "startup_trials": 13}}}, "none of the 13 trials can stop early"),
        (
            {"stop": {"median": {"rungs": [1, 3]}}},
            "the last rung has 3 epochs, and base=mlp trains 20; no trial trains longer than the last rung",
        ),
        ({"space": {**LR, "trainer.accumulate": [1, 3]}}, "of 16 drawn settings cannot be trained"),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_what_is_odd_about_a_sweep_is_said_before_the_first_trial(
    sweep, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = load(**sweep)
    (plan,) = project.sweeps.values()
    notes = notes_of(project, plan, load_variant)
    assert len(notes) == bool(sentence)
    assert sentence in "".join(notes)


OWN = """
import torch
from shardline.training.models.mlp import MLP


class Net(MLP):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
"""
READS = """
from shardline.training.models.mlp import MLP


class Net(MLP):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / self.trainer.max_epochs
"""


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
    {"objective": {"metric": "val_acc", "mode": "max"}}, {"stop": STOP},
    {"stop": {"halving": {"rungs": [1, 3], "keep": 2}}}, {"stop": {"halving": {"rungs": [1, 4], "keep": 3}}},
    {"stop": {"median": {"rungs": [1, 3]}}}, {"stop": {"median": {"rungs": [1, 3], "startup_trials": 6}}},
    {"stop": {"median": {"rungs": [1, 2, 3]}}}, {"stop": {"median": {"rungs": [1, 2, 3], "warmup_rungs": 1}}},
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
        (CrashLoop("twice", "RuntimeError: boom\n  net.py, line 6"), True),
        (CrashLoop("twice", "rank 0: MyOwnError: boom"), True),
        (CrashLoop("twice", "RuntimeError: CUDA error: an illegal memory access"), False),
        (CrashLoop("twice", "OSError: [Errno 28] No space left on device"), False),
        (CrashLoop("twice", "python exited with code 137: progress step=1/2"), False),
        (CrashLoop("twice", "torch.distributed.DistBackendError: NCCL"), False),
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
