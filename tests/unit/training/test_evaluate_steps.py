"""A model with a `test_step` is evaluated by what it logs; others by named metrics beside their task's own."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sklearn.metrics import cohen_kappa_score, f1_score
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassF1Score

from shardline.config.settings.run_settings import Headline
from shardline.core.errors import ConfigError
from shardline.data.splits import SPLITS, assign_splits
from shardline.records.evaluations import HeadlineValue
from shardline.training import headline as headlines
from shardline.training.diagnostics import MAX_ROWS, RowValues
from shardline.training.evaluate import evaluate
from tests.support.evaluated_model import SHARES, Flat, Rows, evaluated, sealed_model

TABLE = {"num_shards": 2, "shape": (3,), "dtype": "float32"}
DRAWN = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Tested(Flat):
    """Logs a loss by rows, an F1 of torchmetrics and a mean at the end."""

    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.f1 = MulticlassF1Score(num_classes)
        self.kept = MeanMetric()

    def test_step(self, batch, batch_idx):
        features, labels = batch
        logits = self(features)
        self.f1(logits, labels)
        self.kept.update(features)
        self.log("test_loss", functional.cross_entropy(logits, labels))
        self.log("test_f1", self.f1)
        self.log("largest", logits.max(), reduce_fx="max")
        self.log("each", 1.0, on_epoch=False, on_step=True)
        self.logger.log_image("rows", [features])
        self.logger.log_metrics({"rows": len(features)})

    def on_test_epoch_end(self):
        self.log("features", self.kept.compute())


class Wordless(Flat):
    """Logs what tells nobody which end is better."""

    def test_step(self, batch, batch_idx):
        self.log("wibble", 1.0)


class Silent(Flat):
    """Logs nothing."""

    def test_step(self, batch, batch_idx):
        return None


class Summed(Flat):
    """Sums more ones than a float of 8 bits of mantissa can count."""

    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.mean = MeanMetric()

    def test_step(self, batch, batch_idx):
        self(batch[0])
        for value in [1.0] * 300 + [0.0] * 300:
            self.mean.update(value)
        self.log("mean_error", self.mean)


class Odd(Flat):
    """Logs by a function that nobody knows."""

    def test_step(self, batch, batch_idx):
        self.log("loss", 1.0, reduce_fx=torch.median)


def held_out(source, model):
    """Return features and labels of the test split, and the model's outputs."""
    tables = [table for shard in range(source.num_shards) for table in source.iter_tables(shard)]
    held = [assign_splits(table.ids, SHARES) == SPLITS.index("test") for table in tables]
    features = np.concatenate([t.features[h] for t, h in zip(tables, held, strict=True)])
    labels = np.concatenate([t.labels[h] for t, h in zip(tables, held, strict=True)])
    with torch.no_grad():
        return features, labels, model(torch.from_numpy(features).float())


@DRAWN
@given(rows=st.integers(20, 60), batch=st.integers(1, 70))
def test_what_a_test_step_logs_is_the_evaluation_whatever_the_blocks(
    rows: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = Rows(**TABLE, rows=rows)
    found, model = evaluated(tmp_path_factory.mktemp("run"), source, 3, Tested, batch=batch)
    features, labels, logits = held_out(source, model)
    metrics = found["metrics"]
    assert list(metrics) == ["test_loss", "test_f1", "largest", "features"]
    loss = float(functional.cross_entropy(logits, torch.from_numpy(labels)))
    assert metrics["test_loss"] == pytest.approx(loss, rel=1e-5)
    f1 = f1_score(labels, logits.argmax(1), average="macro", labels=[0, 1, 2], zero_division=0)
    assert metrics["test_f1"] == pytest.approx(f1, abs=1e-6)
    assert metrics["largest"] == pytest.approx(float(logits.max()), rel=1e-6)
    assert metrics["features"] == pytest.approx(float(features.mean()), rel=1e-5)
    expected = {"metric": "test_loss", "value": metrics["test_loss"], "mode": "min"}
    assert (found["headline"], found["num_samples"]) == (expected, len(labels))
    assert (found["measured_by"], found["task"]) == ("model", "classification")


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "16-true"])
def test_the_metrics_of_a_test_step_are_not_summed_in_16_bits(
    tmp_path: Any, precision: str
) -> None:
    given, _ = sealed_model(tmp_path, Rows(**TABLE, rows=40), 0, Summed)
    settings = replace(given["spec"].settings, precision=precision)
    found = evaluate(**{**given, "spec": replace(given["spec"], settings=settings)})
    assert found.metrics == {"mean_error": 0.5}


def test_a_test_step_gets_features_as_its_training_does(tmp_path: Any) -> None:
    found, _ = evaluated(tmp_path, Rows(**TABLE), 0, Tested, normalize="standard")
    assert abs(found["metrics"]["features"]) < 0.2, "of a mean of 4 in the table"


@pytest.mark.parametrize(
    ("model", "wanted", "message"),
    [
        (
            Wordless,
            None,
            r"gave wibble, and Shardline cannot tell .* set evaluation.headline: \{metric: wibble, mode: max\}",
        ),
        (Silent, None, "test_step logs nothing, expected at least one metric"),
        (Odd, None, "logs loss with reduce_fx=.*, expected mean, sum, min or max"),
        (Tested, "test_f2", 'gave test_loss, test_f1, .*headline.metric=test_f2 .*mean "test_f1"'),
    ],
)
def test_what_cannot_be_ranked_is_a_sentence(
    tmp_path: Any, model: Any, wanted: str | None, message: str
) -> None:
    headline = Headline(metric=wanted, mode="max") if wanted else None
    with pytest.raises(ConfigError, match=message):
        evaluated(tmp_path, Rows(**TABLE), 0, model, headline=headline)


def test_of_logged_metrics_the_first_that_is_known_to_have_a_better_end_is_the_headline() -> None:
    metrics = {"wibble": 3.0, "bleu": 2.0, "test_loss": 1.0, "test_f1": 0.5}
    chosen = headlines.choose_headline(metrics, wanted=None, what="it")
    assert chosen == HeadlineValue(metric="test_loss", value=1.0, mode="min")
    chosen = headlines.choose_headline(metrics, wanted=None, what="it", modes={"bleu": "max"})
    assert chosen == HeadlineValue(metric="bleu", value=2.0, mode="max")


def test_a_wanted_headline_stands_whatever_its_name_says(tmp_path: Any) -> None:
    headline = Headline(metric="wibble", mode="max")
    found, _ = evaluated(tmp_path, Rows(**TABLE), 0, Wordless, headline=headline)
    assert found["headline"] == {"metric": "wibble", "value": 1.0, "mode": "max"}


@pytest.mark.parametrize(
    ("names", "mode"),
    [
        (("test_loss", "perplexity", "val_mse", "mae", "char error", "RMSE"), "min"),
        (("test_acc", "accuracy", "macro_f1", "mIoU", "AUROC", "val/recall", "precision"), "max"),
        (("bleu", "error_recall", "lossless", "score", ""), None),
    ],
)
def test_which_end_is_better_is_guessed_of_obvious_names_alone(
    names: tuple[str, ...], mode: str | None
) -> None:
    assert {headlines.guess_mode(name) for name in names} == {mode}


# --- named metrics ------------------------------------------------------------------------------

NAMED = [
    {"type": "torchmetrics.classification:MulticlassF1Score", "num_classes": 3, "name": "f1"},
    {"type": "CohenKappa", "task": "multiclass", "num_classes": 3},
]


@DRAWN
@given(rows=st.integers(20, 60), batch=st.integers(1, 70))
def test_named_metrics_stand_beside_the_tasks_own_which_they_do_not_change(
    rows: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = Rows(**TABLE, rows=rows)
    plain, _ = evaluated(tmp_path_factory.mktemp("run"), source, 3, batch=batch)
    found, model = evaluated(tmp_path_factory.mktemp("run"), source, 3, batch=batch, metrics=NAMED)
    _, labels, logits = held_out(source, model)
    given_labels, predicted = labels, logits.argmax(1).numpy()
    f1 = f1_score(given_labels, predicted, average="macro", labels=[0, 1, 2], zero_division=0)
    assert found["metrics"].pop("f1") == pytest.approx(f1, abs=1e-6)
    kappa = cohen_kappa_score(given_labels, predicted)
    assert found["metrics"].pop("CohenKappa") == pytest.approx(kappa, abs=1e-5, nan_ok=True)
    assert found == plain


def test_a_named_metric_of_a_regression_takes_values_of_one_column(tmp_path: Any) -> None:
    source = Rows(**TABLE, task="regression")
    found, _ = evaluated(tmp_path, source, 3, metrics=["MeanSquaredError", "R2Score"])
    assert found["metrics"]["MeanSquaredError"] == pytest.approx(found["metrics"]["mse"], rel=1e-5)
    assert list(found["metrics"]) == ["mse", "mae", "MeanSquaredError", "R2Score"]
    assert found["headline"]["metric"] == "mse"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            {"type": "MeanSquaredError"},
            "does not accept forward's outputs float32.* and labels int64",
        ),
        (
            {"type": "F1Score"},
            r"metrics.0.type=F1Score takes task, .* lacks task; add evaluation.metrics.0.task",
        ),
        ({"type": "torch.nn:Identity"}, "is a Identity, expected a torchmetrics metric"),
        (
            {**NAMED[0], "average": "none"},
            r"f1 returns float32\[3\], expected one number; average the values",
        ),
    ],
)
def test_a_metric_that_does_not_fit_is_a_sentence(
    tmp_path: Any, metric: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluated(tmp_path, Rows(**TABLE), 0, metrics=[metric])


def test_a_metric_that_keeps_all_outputs_says_so(tmp_path: Any, capsys: Any) -> None:
    kept = {"type": "AUROC", "task": "multiclass", "num_classes": 3}
    evaluated(tmp_path, Rows(**TABLE), 0, metrics=[kept, NAMED[0]])
    lines = [line for line in capsys.readouterr().out.splitlines() if "memory grows" in line]
    assert len(lines) == 1
    assert lines[0].startswith("metric AUROC (MulticlassAUROC) keeps values of every row")


# --- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "metric"), [("classification", "loss"), ("regression", "mae")])
def test_a_mean_that_is_the_wanted_headline_has_an_interval(
    tmp_path: Any, task: str, metric: str
) -> None:
    source = Rows(**TABLE, task=task)
    headline = Headline(metric=metric, mode="min")
    found, model = evaluated(tmp_path, source, 3, headline=headline)
    _, labels, outputs = held_out(source, model)
    label = torch.from_numpy(labels)
    values = (
        functional.cross_entropy(outputs, label, reduction="none")
        if task == "classification"
        else (outputs.squeeze(1) - label).abs()
    ).double()
    low, high = found["headline"]["interval"]
    half = 1.96 * float(values.std()) / len(values) ** 0.5
    assert found["headline"]["interval_method"] == "bootstrap"
    assert found["headline"]["value"] == found["metrics"][metric]
    assert (low, high) == pytest.approx(
        (float(values.mean()) - half, float(values.mean()) + half), abs=half / 2
    )


@given(st.sampled_from([("accuracy", 9), ("loss", MAX_ROWS + 1), ("f1", 9), ("loss", 1)]))
def test_no_interval_is_claimed_where_none_can_be_had(case: tuple[str, int]) -> None:
    metric, num_rows = case
    rows = RowValues(metric, num_rows)
    rows.add({"loss": np.full(min(num_rows, 9), 0.5), "error": np.arange(9.0)})
    headline = HeadlineValue(metric="m", value=0.5)
    assert rows.with_interval(headline) is headline
