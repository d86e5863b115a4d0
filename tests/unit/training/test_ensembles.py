"""An ensemble's evaluation and predictions are those of the average outputs of its members."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from safetensors.numpy import load_file
from safetensors.torch import save_file

from shardline.config.resolved import Member
from shardline.config.settings.run_settings import Ensemble
from shardline.data.prediction_parts import part_file
from shardline.errors import ConfigError, DataError
from shardline.training.ensembles import join_outputs
from shardline.training.evaluate import evaluate
from shardline.training.predict import predict
from tests.support.evaluated_model import Flat, Rows, sealed_model


class Given(pl.LightningModule):
    """Returns the logits that it was made with."""

    def __init__(self, logits):
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, features):
        return self.logits[features]


class Own(Flat):
    """Predicts by a step of its own."""

    def predict_step(self, batch, batch_idx):
        return batch[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=2, max_size=2),
        min_size=1, max_size=4,
    ),
    st.sampled_from(["classification", "multilabel", "regression"]),
    st.sampled_from(["probabilities", "logits"]),
)  # fmt: skip
def test_outputs_are_averaged_as_numpy_does(logits, task, outputs):
    stacked = np.array(logits)  # members, rows, outputs
    models = [Given(torch.tensor(one, dtype=torch.float64)) for one in logits]
    found = join_outputs(models, task, outputs, "run")(torch.arange(2)).numpy()
    if task == "regression" or outputs == "logits":
        assert np.allclose(found, stacked.mean(axis=0))
    elif task == "classification":
        shares = np.exp(stacked) / np.exp(stacked).sum(axis=2, keepdims=True)
        mean = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
        assert np.allclose(mean, shares.mean(axis=0))
    else:
        mean = (1 / (1 + np.exp(-stacked))).mean(axis=0)
        assert np.allclose(1 / (1 + np.exp(-found)), mean)


def test_members_of_other_outputs_are_rejected():
    models = [Given(torch.zeros(2, 3)), Given(torch.zeros(2, 4))]
    with pytest.raises(DataError, match=r"returned \[2, 3\] and \[2, 4\], expected tensors of one"):
        join_outputs(models, "classification", "logits", "run")(torch.arange(2))


def ensembled(folder, task, number=3, model=Flat, outputs="probabilities"):
    """Return what evaluates an ensemble, and its models."""
    rows = Rows(num_shards=2, shape=(4,), dtype="float32", task=task)
    given, one = sealed_model(folder, rows, 0, model)
    models, members = [], []
    for seed in range(number):
        torch.manual_seed(seed)
        models.append(type(one)((4,), 3 if task == "classification" else 0).eval())
        file = folder / f"{seed}.safetensors"
        save_file(models[-1].state_dict(), file)
        members.append(Member(run=f"{seed:012x}", file=file, title=f"run {seed}"))
    changed = structs.replace(given["spec"].settings, ensemble=Ensemble(of=["a"], outputs=outputs))
    spec = structs.replace(given["spec"], settings=changed, members=tuple(members))
    return {**given, "spec": spec, "model_file": folder / "none"}, models


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_evaluation_and_prediction_of_the_average(tmp_path, task):
    given, models = ensembled(tmp_path, task)
    found, place = evaluate(**given), given["datasets"][0]
    parts = predict(
        given["spec"], model_file=tmp_path / "none", trained_on=[place], rows=place, split="test",
        folder=tmp_path / "parts", parts=[0],
    )  # fmt: skip
    (tmp_path / "parts").mkdir()
    assert sum(parts) == found.num_samples
    columns = load_file(part_file(tmp_path / "parts", 0))
    rows = Rows(num_shards=2, shape=(4,), dtype="float32", task=task)
    features = dict(zip(rows.ids.tolist(), rows.features, strict=True))
    seen = torch.tensor(np.stack([features[one] for one in columns["id"].tolist()]))
    with torch.inference_mode():
        outputs = torch.stack([one(seen) for one in models])
    if task == "regression":
        mean = outputs.mean(0).squeeze(1).numpy()
        assert np.allclose(columns["prediction"], mean, atol=1e-6)
        errors = mean - columns["label"]
        assert found.metrics["mse"] == pytest.approx(float((errors**2).mean()), rel=1e-5)
    else:
        mean = outputs.softmax(2).mean(0).numpy()
        assert np.allclose(columns["probabilities"], mean, atol=1e-6)
        assert found.metrics["accuracy"] == (mean.argmax(1) == columns["label"]).mean()


def test_models_with_steps_of_their_own_are_rejected(tmp_path):
    given, _ = ensembled(tmp_path, "classification", model=Own)
    place = given["datasets"][0]
    parts = predict(
        given["spec"], model_file=tmp_path, trained_on=[place], rows=place, split="test",
        folder=tmp_path, parts=[0],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="ensemble averages what forward returns for classes"):
        next(parts)
