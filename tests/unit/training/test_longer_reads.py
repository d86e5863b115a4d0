"""Ways in which the code of a model or callback depends on a training's length, and state that no checkpoint has.

Such a training is not continued, and the reason names the read or the value.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import LambdaCallback

from shardline.records.base import encode
from shardline.records.model_warnings import read_warnings
from shardline.training.length import LengthBound, _ends
from shardline.training.outside_state import OutsideState
from tests.support.lengthy_models import KEPT, NOTED, OF_EPOCH, OF_NEITHER, OF_TRAINING, Keeps
from tests.support.longer_trainings import EPOCHS, bounds, of_length, run_all, step_continued
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings

MODELS = "tests.support.lengthy_models"


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def test_each_read_of_the_length_is_recorded(trainings, tmp_path):
    NOTED.of = {}
    bounds(
        trainings,
        Case(name="reads", model=f"{MODELS}:ReadsAll", settings={EPOCHS: 1}),
        tmp_path,
    )
    read = {
        name: [[*map(_read_by_the_model, group)] for group in of] for name, of in NOTED.of.items()
    }
    assert read == {
        **{name: [[name.partition(" ")[0]], []] for name in OF_TRAINING},
        **{name: [[], [name]] for name in OF_EPOCH},
        **{name: [[], []] for name in OF_NEITHER},
    }


def _read_by_the_model(sentence: str) -> str:
    reader, _, name = sentence.partition(" reads trainer.")
    assert reader.startswith(f"{MODELS}:")
    return name


@pytest.mark.parametrize("place", KEPT)
def test_state_that_no_checkpoint_contains_is_named(place):
    model: Any = Keeps(2, place)
    callbacks = model.configure_callbacks()
    optimizers = [model.configure_optimizers()]
    outside = OutsideState(
        SimpleNamespace(lightning_module=model, callbacks=callbacks, optimizers=optimizers)
    )
    assert outside.changed() == []
    for _ in range(2):
        model.scale(torch.ones(3, 4))
        for one in callbacks:
            one.on_train_batch_end(None, model)
        model.on_train_batch_end()
    assert outside.changed() == ([KEPT[place]] if KEPT[place] else [])


def test_values_that_a_resumed_training_lacks_are_named_once(capsys):
    model = Keeps(2, "in place")  # a tensor, of which `CheckpointManager` warns
    trainer = SimpleNamespace(lightning_module=model, callbacks=[], optimizers=[])
    bound = LengthBound()
    bound._outside = OutsideState(trainer)
    model.scale(torch.ones(3, 4))
    model.on_train_batch_end()
    assert bound.state_dict()["outside"] == ["Keeps.mean"]
    assert capsys.readouterr().out == ""
    model.number, model.history = 3, [1.0]
    for _ in range(2):
        assert bound.state_dict()["outside"] == ["Keeps.history", "Keeps.mean", "Keeps.number"]
    assert capsys.readouterr().out == (
        "warning: training checkpoints do not contain Keeps.history (1 more), which changes while it trains; a "
        "resumed training starts with its initial value; keep it in a buffer, or save it in the model's "
        "on_save_checkpoint or the callback's state_dict\n"
    )


@pytest.mark.parametrize(
    ("place", "step"), [("number", 0), ("callback", 0), ("buffer", 8), ("saved callback", 8)]
)
def test_a_training_is_continued_only_if_its_checkpoints_contain_all(
    trainings, tmp_path, place, step
):
    of = Case(
        name=place, model=f"{MODELS}:Keeps", settings={EPOCHS: 3, "model_args": {"place": place}}
    )
    unbroken, _ = trainings.unbroken(of)
    cases = [(of_length(of, EPOCHS, 2), [], True), (of, [], True)]
    outcome, chain = run_all(trainings, cases, tmp_path, every_steps=2, keep=3)
    assert step_continued(chain) == step
    assert outcome.differences(unbroken) == []


def test_a_resumed_training_records_what_began_again(trainings, tmp_path):
    of = Case(name="resumed", model=f"{MODELS}:Keeps", settings={"model_args": {"place": "number"}})
    chain = Chain(trainings, of, tmp_path)
    assert chain.attempt(Kill(place="model.training_step", step=5)) is None
    trained = chain.attempt(None)
    assert trained.resumed_step
    assert trained.unsaved == ["Keeps.number"]
    (warning,) = read_warnings(tmp_path / "none", {"training": encode(trained)}, {})
    assert warning.kind == "resumed"
    assert "Keeps.number began again" in warning.sentence


def test_a_function_of_a_lambda_callback_acts_at_the_end():
    found = [LambdaCallback(on_train_end=print), LambdaCallback(on_fit_start=print)]
    model = Keeps(2, "nowhere")
    clauses = [*_ends(SimpleNamespace(callbacks=found, lightning_module=model))]
    assert clauses == ["LambdaCallback.on_train_end changes the state at the end of a training"]
