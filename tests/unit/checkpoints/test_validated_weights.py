"""What is sealed is what was validated: weights that callbacks and hooks exchange for a validation."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from safetensors.torch import load, load_file

from shardline.checkpoints.averaging import check_averaging
from shardline.checkpoints.weights import load_weights
from shardline.core.errors import ConfigError
from shardline.data.datamodule import ShardDataModule
from shardline.training.model import make_model
from tests.support.campaigns import campaign_seed
from tests.support.rotation import rotating
from tests.support.simulated_kills import ALONE, Case, Chain, Kill, Trainings, build_trainings

MODELS = "tests.support.swapping_models"
SWAPPING = [
    "Averaging", "Hides", "ByEpochs", "ByCallback", "ByHooks", "SecondModule", "Stochastic",
    "StochasticPlain", "StochasticBest",
]  # fmt: skip


def case(model: str) -> Case:
    # its validation sums up what no sealed model has
    return Case(
        name=model, model=f"{MODELS}:{model}", check_sealed="warn" if model == "Hides" else "error"
    )


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def validated(trainings: Trainings, of: Case, weights: bytes) -> float:
    """Return what a fresh model with these weights, and nothing around it, measures on the validation split."""
    spec = trainings.spec_of(of)
    data = ShardDataModule(spec.settings, trainings.places(of), ALONE, verify="off")
    model = make_model(spec, data.manifest.schema)
    load_weights(model, load(weights))
    model.eval()
    total = 0.0
    for batch in data.val_dataloader():
        features, labels = data.on_after_batch_transfer(batch, 0)
        total += float(model.loss((features, labels))) * len(labels)
    return total / data.val_dataloader().num_rows


@pytest.mark.parametrize("model", SWAPPING)
def test_the_sealed_weights_measure_what_was_recorded(trainings, model):
    unbroken, _ = trainings.unbroken(case(model))
    found = validated(trainings, case(model), unbroken.model)
    assert found == pytest.approx(unbroken.trained["best_score"], rel=1e-5)


def test_statistics_that_no_pass_could_take_are_refused_before_the_training():
    model = make_model_of_norm(track_running_stats=True)
    average = [StochasticWeightAveraging(0.1)]
    check_averaging(average, model, is_sharded=False)
    model.automatic_optimization = False
    with pytest.raises(ConfigError, match="StochasticWeightAveraging.*GroupNorm"):
        check_averaging(average, model, is_sharded=False)
    check_averaging(average, make_model_of_norm(track_running_stats=False), is_sharded=False)


def test_an_average_in_16_bits_is_refused_before_the_training():
    """An average that takes a thousandth of each step stays where it began, since the sum is rounded to it."""
    average = [EMAWeightAveraging(decay=0.999)]
    model = make_model_of_norm(track_running_stats=True)
    check_averaging(average, model, is_sharded=False)
    check_averaging([StochasticWeightAveraging(0.1)], model.bfloat16(), is_sharded=False)
    with pytest.raises(
        ConfigError, match=r"EMAWeightAveraging averages weights in bfloat16.*bf16-mixed"
    ):
        check_averaging(average, model, is_sharded=False)


def make_model_of_norm(**options: bool) -> LightningModule:
    model = LightningModule()
    model.norm = torch.nn.BatchNorm1d(2, **options)
    return model


KILLS = [
    Kill(place="model.validation_step", step=8),
    Kill(place="callback.on_validation_epoch_end", step=12),
    Kill(place="model.on_fit_end", step=16),
]


@pytest.mark.parametrize("model", [*SWAPPING[:2], *rotating(*SWAPPING[2:])])
def test_kills_in_mid_validation_and_elsewhere_change_nothing(trainings, model):
    unbroken, _ = trainings.unbroken(case(model))
    assert trainings.killed(case(model), KILLS).differences(unbroken) == []


def test_what_a_fresh_model_does_not_repeat_is_not_sealed_nor_where_it_resumes_at_its_end(
    trainings, tmp_path
):
    chain = Chain(trainings, case("Outside"), tmp_path)
    message = (
        r"in the first batch of the validation at step \d+, validation_step.val_loss was .* persistent "
        "buffers of the model, not in callbacks or plain attributes, or set runtime.check_sealed: warn"
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=message):
            chain.attempt(None)
    assert "model.on_train_end" not in chain.last.places, "the second attempt had nothing to train"
    assert not list(tmp_path.rglob("model.safetensors"))


def test_weights_that_a_fresh_model_does_not_take_are_not_sealed(trainings, tmp_path):
    with pytest.raises(ConfigError, match=r"do not fit a fresh model: .*head.late.* constructor"):
        Chain(trainings, case("Lazy"), tmp_path).attempt(None)


def test_it_is_sealed_with_a_warning_where_that_is_asked_for(trainings, tmp_path, capsys):
    chain = Chain(trainings, replace(case("Outside"), check_sealed="warn"), tmp_path)
    assert chain.attempt(None)
    assert "warning: run" in capsys.readouterr().out
    assert [*tmp_path.rglob("model.safetensors")]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Adapts", "more than one model: parameter head.bias changed between .* Adapts.validation_step"),
        ("Probed", "parameter head.bias changed after the last batch of the validation at step 4, .* or make "
         "head.bias a buffer; check .*Probed.on_validation_epoch_end"),
    ],
)  # fmt: skip
def test_parameters_that_a_validation_changes_are_an_error_that_names_the_hook(
    trainings, tmp_path, model, message
):
    with pytest.raises(ConfigError, match=message):
        Chain(trainings, case(model), tmp_path).attempt(None)


def test_a_buffer_that_a_validation_determines_is_sealed_as_it_left_it(trainings, tmp_path):
    own = replace(case("Probed"), settings={"model_args": {"is_parameter": False}})
    chain = Chain(trainings, own, tmp_path)
    trained = chain.attempt(None)
    sealed = load_file(chain.root / "results/model.safetensors")
    assert trained.steps == 16
    assert int(sealed["threshold"]) in (4, 8, 12, 16)


def test_names_of_a_compiled_part_are_plain_and_it_resumes(trainings, tmp_path):
    chain = Chain(trainings, case("Compiled"), tmp_path)
    chain.attempt(KILLS[0])
    chain.attempt(None)
    plain = Chain(
        trainings,
        Case(name="plain", model="tests.support.killed_models:RecordedModel"),
        tmp_path / "plain",
    )
    plain.attempt(None)
    sealed, expected = (load_file(one.root / "results/model.safetensors") for one in (chain, plain))
    assert sealed.keys() == expected.keys()
    assert all(sealed[name].equal(expected[name]) for name in expected)


def test_what_a_training_checkpoint_leaves_out_is_sealed(trainings):
    unbroken, _ = trainings.unbroken(case("Rewrites"))
    killed = trainings.killed(case("Rewrites"), KILLS[:1])
    assert killed.differences(unbroken) == []
    assert {"head.weight", "head.bias"} <= load(killed.model).keys()


CHAINS = int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "3"))
SEED = campaign_seed()


@settings(
    max_examples=CHAINS, deadline=None, database=None, print_blob=True,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip
@seed(SEED)
@given(data=st.data())
def test_kills_at_any_place_of_a_training_that_exchanges_weights_change_nothing(trainings, data):
    note(f"SHARDLINE_SEED={SEED}")
    of = case(data.draw(st.sampled_from(SWAPPING), "model"))
    unbroken, places = trainings.unbroken(of)
    kill = st.builds(
        Kill, place=st.sampled_from(sorted(places)), step=st.integers(0, max(places.values())),
        torn=st.none() | st.floats(0, 1),
    )  # fmt: skip
    kills = sorted(data.draw(st.lists(kill, min_size=1, max_size=4), "kills"), key=lambda k: k.step)
    killed = trainings.killed(of, kills, every_steps=data.draw(st.integers(1, 5), "every_steps"))
    assert killed.differences(unbroken) == []
