"""Callbacks of a run: what works, resumes with its bits, and what is rejected with a sentence."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pytorch_lightning import callbacks as lightning
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.writer import StateWriter
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.errors import ConfigError
from shardline.training.callbacks import problems_of
from tests.support.called_back_models import Counts
from tests.support.campaigns import campaign_seed
from tests.support.rotation import rotating
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings

MODELS = "tests.support.called_back_models"
OURS = {"early_stopping.patience": 1}
AVERAGED = [  # as in a config
    {"type": "StochasticWeightAveraging", "swa_lrs": 0.05, "swa_epoch_start": 2, "annealing_epochs": 3},
    {"_target_": f"{MODELS}.Counts"},
]  # fmt: skip
MIXED = [
    {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.9}},
    {"type": "GradientAccumulationScheduler", "scheduling": {"2": 2}},
    {"type": "ModelCheckpoint", "monitor": "val_loss"},
    f"{MODELS}:Counts",
]
CASES = [
    Case(name=name, model=f"{MODELS}:{name}", settings=changed)
    for name, changed in {
        "Saves": {},
        "Accumulating": {"schedule.name": "cosine"},
        "Finetuned": {"schedule.name": "linear"},
        "FinetunedByItself": {},
        "Counted": OURS,
    }.items()
] + [
    Case(name=name, model="tests.support.killed_models:Counting", settings={"callbacks": listed})
    for name, listed in {"Averaged": AVERAGED, "Mixed": MIXED}.items()
]
SEED = campaign_seed()
CHAINS = max(2, int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "12")) // 6)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


KILLS = [Kill(place="model.training_step", step=step) for step in (2, 4, 9)]


@pytest.mark.parametrize("case", [*CASES[:2], *rotating(*CASES[2:])], ids=lambda case: case.name)
def test_kills_change_nothing_of_a_training_with_callbacks(trainings, case):
    unbroken, _ = trainings.unbroken(case)
    assert trainings.killed(case, KILLS).differences(unbroken) == []


@settings(max_examples=CHAINS, deadline=None, database=None, suppress_health_check=[*HealthCheck])
@seed(SEED)
@given(data=st.data())
def test_chains_of_kills_in_any_place_change_nothing(trainings, data):
    note(f"SHARDLINE_SEED={SEED}")
    case = data.draw(st.sampled_from(CASES), "case")
    unbroken, places = trainings.unbroken(case)
    kill = st.builds(
        Kill, place=st.sampled_from(sorted(places)), step=st.integers(0, max(places.values())),
        torn=st.none() | st.floats(0, 1),
    )  # fmt: skip
    kills = sorted(data.draw(st.lists(kill, min_size=1, max_size=5), "kills"), key=lambda k: k.step)
    killed = trainings.killed(
        case, kills, every_steps=data.draw(st.integers(0, 5), "every_steps"),
        lateness=data.draw(st.integers(0, 40), "lateness"),
    )  # fmt: skip
    assert killed.differences(unbroken) == []


def test_a_training_that_resumes_within_an_epoch_sums_as_many_batches(trainings):
    (case,) = (one for one in CASES if one.name == "Mixed")
    unbroken, _ = trainings.unbroken(case)
    kills = [Kill(place="model.training_step", step=9)]
    assert trainings.killed(case, kills, every_steps=1).differences(unbroken) == []


def test_a_model_s_own_files_are_in_the_work_folder_and_are_those_of_its_state(trainings, tmp_path):
    chain = Chain(trainings, CASES[0], tmp_path)
    chain.run(KILLS)
    found = [p.relative_to(chain.root) for p in chain.root.rglob("*.ckpt")]
    inside = Path("work/model_checkpoints")
    mine = sorted(path.name for path in found if path.parent == inside / "mine")
    assert len(mine) == 3
    assert mine[-1] == "last.ckpt"
    assert sorted(path.name for path in found if path.parent == inside) == ["epoch=3-step=16.ckpt"]
    assert len(found) == 5


def test_steps_that_sum_several_batches_are_planned_counted_and_recorded(trainings):
    unbroken, _ = trainings.unbroken(CASES[1])
    assert (
        unbroken.trained["steps"] == 4 + 2 + 2 + 2
    )  # batches of 4: a step each, two, three and one
    assert unbroken.trained["consumed"] == {"steps": 10, "planned": 10, "reasons": []}
    assert [len(rows) for rows in unbroken.ledger.values()] == [4] * 4 + [8] * 2 + [12, 4] * 2
    (*_, last) = [one["lr-Adam"] for one in unbroken.records if "lr-Adam" in one]
    assert 0 < last < 0.005, "the cosine ends with the last step"


class Elsewhere(Callback):
    """A state that no training checkpoint can contain."""

    def state_dict(self):
        return {"path": Path()}


class Saver(lightning.Checkpoint):
    """Saves something."""


REFUSED = [
    (lightning.LearningRateFinder(), {}, "LearningRateFinder .*`shardline find lr RUN`"),
    (lightning.BatchSizeFinder(), {}, "BatchSizeFinder .*`shardline find batch RUN`"),
    (lightning.TQDMProgressBar(), {}, "TQDMProgressBar draws a bar.*; remove it"),
    (lightning.RichProgressBar, {}, "RichProgressBar draws a bar"),
    (lightning.OnExceptionCheckpoint("."), {}, "OnExceptionCheckpoint saves .*set runtime.checkpoint"),
    (Saver(), {}, "Saver saves training checkpoints"),
    (lightning.ModelCheckpoint(), {"strategy": "fsdp"}, "strategy=fsdp shards them.*strategy: ddp"),
    (lightning.ModelCheckpoint(save_on_exception=True), {}, "save_on_exception=True.* set it to False"),
    (lightning.ModelPruning("l1_unstructured"), {}, "prune the sealed model"),
    (lightning.Timer(timedelta(hours=1)), {}, "Timer ends the training after a time.*trainer.max_epochs"),
    (lightning.EarlyStopping("val_loss"), {}, "EarlyStopping watches val_loss, .*early_stopping.patience: 0"),
    (
        lightning.GradientAccumulationScheduler({0: 2}), {"trainer": Trainer(accumulate=2)},
        "whole global batches, and trainer.accumulate=2 splits",
    ),
    (lightning.GradientAccumulationScheduler({0: 2}), {"elastic": True}, "elastic=true splits"),
    ("Counts", {}, "returns an object of str, expected callbacks"),
]  # fmt: skip
OUR_OWN = [lightning.EarlyStopping("val_loss")]


@pytest.mark.parametrize(("callback", "changes", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_cannot_be_right_is_one_sentence(callback, changes, message):
    if isinstance(callback, type):
        pytest.importorskip("rich")
        callback = callback()
    with_changes = replace(RunSettings(), **changes)
    (problem,) = problems_of([Counts(), callback], OUR_OWN, with_changes)
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(problem)


def test_callbacks_that_are_right_are_no_problem():
    fine = [
        Counts(), lightning.ModelCheckpoint(), lightning.EarlyStopping("val_acc", mode="max"), lightning.Timer(),
        lightning.LearningRateMonitor(), lightning.DeviceStatsMonitor(), lightning.ModelSummary(), Callback(),
    ]  # fmt: skip
    assert [*problems_of(fine, OUR_OWN, RunSettings())] == []
    (problem,) = problems_of([Counts(), Counts()], OUR_OWN, RunSettings())
    assert problem.startswith("two callbacks have the state_key Counts, so")


@pytest.mark.parametrize("value", [Path(), lambda: None], ids=["a path", "a function"])
def test_a_state_that_cannot_be_loaded_is_named(tmp_path, value):
    state = {
        "global_step": 1, "epoch": 0, "state_dict": {"a": torch.zeros(1)},
        "callbacks": {"Counts": {"n": 1}, "Elsewhere": {"path": value}},
    }  # fmt: skip
    writer = StateWriter(tmp_path, "0" * 64, 1)
    message = "cannot be resumed .state of the callback Elsewhere: .*states of callbacks"
    with pytest.raises(ConfigError, match=message):
        writer.write(state, world_size=1, new_best={}, best=set())
    state["callbacks"]["Elsewhere"] = {}
    state["mine"] = value
    with pytest.raises(ConfigError, match=r"\(on_save_checkpoint sets mine: "):
        writer.write(state, world_size=1, new_best={}, best=set())
