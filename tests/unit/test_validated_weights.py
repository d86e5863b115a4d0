"""What is sealed is what was validated: weights that callbacks and hooks exchange for a validation."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from shardline.data.datamodule import ShardDataModule
from shardline.training.model import make_model
from tests.support.simulated_kills import ALONE, Case, Chain, Kill, Trainings, build_trainings

MODELS = "tests.support.swapping_models"
SWAPPING = ["Averaging", "Hides", "ByEpochs", "ByCallback", "ByHooks", "SecondModule"]


def case(model: str) -> Case:
    return Case(name=model, model=f"{MODELS}:{model}")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def validated(trainings: Trainings, of: Case, file: Path) -> float:
    """Return what a fresh model with these weights, and nothing around it, measures on the validation split."""
    spec = trainings.spec_of(of)
    data = ShardDataModule(spec.settings, trainings.places(of), ALONE, verify="off")
    model = make_model(spec, data.manifest["schema"])
    model.load_state_dict(load_file(file))
    model.eval()
    total = 0.0
    for batch in data.val_dataloader():
        features, labels = data.on_after_batch_transfer(batch, 0)
        total += float(model.loss((features, labels))) * len(labels)
    return total / data.val_dataloader().num_rows


@pytest.mark.parametrize("model", SWAPPING)
def test_the_sealed_weights_measure_what_was_recorded(trainings, tmp_path, model):
    chain = Chain(trainings, case(model), tmp_path)
    trained = chain.attempt(None)
    found = validated(trainings, case(model), chain.root / "results/model.safetensors")
    assert found == pytest.approx(trained["best_score"], rel=1e-5)


KILLS = [
    [Kill(place="model.validation_step", step=8), Kill(place="callback.on_validation_end", step=12)],
    [Kill(place="model.on_train_batch_end", step=6), Kill(place="model.on_validation_epoch_end", step=8)],
    [Kill(place="callback.on_validation_epoch_start", step=4), Kill(place="model.training_step", step=13)],
]  # fmt: skip


@pytest.mark.parametrize("model", SWAPPING)
def test_kills_in_mid_validation_and_elsewhere_change_nothing(trainings, model):
    unbroken, _ = trainings.unbroken(case(model))
    for kills in KILLS:
        assert trainings.killed(case(model), kills).differences(unbroken) == []
