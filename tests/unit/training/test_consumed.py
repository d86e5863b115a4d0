"""Counts come from what was consumed, and what stops short without a recorded reason is refused."""

import pytest

from shardline.core.errors import ConfigError
from tests.support import short_models
from tests.support.evaluated_model import Rows, evaluated
from tests.support.simulated_kills import Case, Kill, Trainings, build_trainings
from tests.unit.training.test_evaluate_steps import TABLE

SHORT, KILLED = "tests.support.short_models", "tests.support.killed_models"


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("FewTrained", r"would train on 2 of the 4 batches of epoch 1, .* set data.epoch_samples"),
        ("FewValidated", r"a validation read 1 of its \d batches, .* chooses the weights; .* in `splits`"),
        ("MaxSteps", r"the training ended after 8 of 16 steps \(4 epochs\), and neither .* set trainer.max_epochs"),
    ],
)  # fmt: skip
def test_a_training_that_is_made_shorter_is_refused(trainings, model, message):
    with pytest.raises(ConfigError, match=message):
        trainings.unbroken(Case(name=model, model=f"{SHORT}:{model}"))


def test_a_whole_training_has_no_reason(trainings):
    found, _ = trainings.unbroken(Case(name="Counting", model=f"{KILLED}:Counting"))
    assert found.trained["consumed"] == {"steps": 16, "planned": 16, "reasons": []}


@pytest.mark.parametrize(
    ("model", "steps", "reason"),
    [
        ("StopsItself", 8, "the model or one of its callbacks set trainer.should_stop"),
        ("SkipsTheRest", 14, "on_train_batch_start returned -1 in 1 epochs, first after step 6"),
    ],
)
def test_a_reason_is_recorded_and_stays_over_kills(trainings, model, steps, reason):
    case = Case(name=model, model=f"{KILLED}:{model}")
    found, _ = trainings.unbroken(case)
    assert found.trained["consumed"] == {"steps": steps, "planned": 16, "reasons": [reason]}
    kills = [Kill(place="callback.on_after_backward", step=step) for step in (3, 7)]
    assert (
        trainings.killed(case, kills, every_steps=1).trained["consumed"]
        == found.trained["consumed"]
    )


def test_early_stopping_is_a_reason(trainings):
    stop = {
        "early_stopping.monitor": "score",
        "early_stopping.patience": 1,
        "checkpoint.monitor": "score",
    }
    case = Case(
        name="Stopping", model=f"{KILLED}:Stopping", settings=stop | {"trainer.max_epochs": 6}
    )
    found, _ = trainings.unbroken(case)
    assert found.trained["consumed"]["reasons"] == ["early stopping by score"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("FewTested", r"the model's test_step scored 14 samples, expected all \d+ samples of the split; look"),
        ("FewJudged", r"the model's validation_step scored 14 samples, expected all \d+ samples of the split"),
    ],
)  # fmt: skip
def test_an_evaluation_of_a_part_is_refused(tmp_path, model, message):
    with pytest.raises(ConfigError, match=message):
        evaluated(
            tmp_path, Rows(**TABLE, task="none"), model_class=getattr(short_models, model), batch=16
        )
