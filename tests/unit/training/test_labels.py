"""Shipped models of numbers, of several numbers, of flags, and of rows with weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn import metrics as sk

from shardline.data.datamodule import ShardDataModule
from shardline.errors import ConfigError, DataError
from shardline.sources import Schema
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.model import make_model
from shardline.training.models.classifier_base import Classifier
from shardline.training.models.resnet import ResNet
from shardline.training.scoring import blocks
from shardline.training.scoring_labels import Flags, Regression, WeightedMeans
from tests.support.labelled_rows import (
    Labelled,
    evaluated,
    in_thirds,
    predicted,
    run_of,
    sealed,
    trained,
)
from tests.support.rank_tasks import ALONE

ROWS = 400
MODELS = ("linear", "mlp", "tabular")


def numbers(num_targets: int = 1, rows: int = ROWS):
    """Return features and labels that depend on them, far from mean 0 and deviation 1."""
    generator = np.random.default_rng(3)
    features = generator.normal(size=(rows, 3)).astype(np.float32)
    weights = generator.normal(size=(3, num_targets))
    labels = 1000.0 + 50 * np.arange(1, num_targets + 1) * (features @ weights)
    return features, labels.astype(np.float32)


def of_numbers(folder, num_targets=1, labels=None):
    features, made = numbers(num_targets)
    labels = made if labels is None else labels
    targets = tuple(f"t{place}" for place in range(num_targets)) if num_targets > 1 else ()
    schema = Schema(feature_shape=(3,), task="regression", targets=targets)
    labels = labels if targets else labels[:, 0]
    source = Labelled(schema, in_thirds(ROWS), num_shards=2, features=features, labels=labels)
    return sealed(folder, source), labels


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_numbers_answers_in_the_units_of_the_labels(model, tmp_path):
    place, labels = of_numbers(tmp_path / "data")
    spec = run_of(model, trainer__max_epochs=8)
    file = trained(tmp_path / "run", place, spec)
    weights, train = load_file(file), labels[in_thirds(ROWS) == 0].astype(np.float64)
    assert float(weights["target_mean"]) == pytest.approx(train.mean(), rel=1e-6)
    assert float(weights["target_std"]) == pytest.approx(train.std(), rel=1e-6)
    found, held_out = evaluated(file, place, spec), predicted(file, place, spec, ROWS // 4)
    truth, values = held_out["label"], held_out["prediction"]
    assert values.shape == truth.shape == (ROWS // 4,)
    assert found["task"] == "regression"
    assert found["headline"]["metric"] == "mse"
    expected = {
        "mse": sk.mean_squared_error(truth, values),
        "mae": sk.mean_absolute_error(truth, values),
        "rmse": sk.root_mean_squared_error(truth, values),
        "r2": sk.r2_score(truth, values),
    }
    assert found["metrics"] == pytest.approx(expected, rel=1e-4)
    assert expected["r2"] > 0.5


def test_a_model_of_several_numbers_has_the_metrics_of_each(tmp_path):
    place, _ = of_numbers(tmp_path / "data", num_targets=3)
    spec = run_of("mlp", model_args={"loss": "huber"})
    file = trained(tmp_path / "run", place, spec)
    found, held_out = evaluated(file, place, spec), predicted(file, place, spec, ROWS // 4)
    truth, values = held_out["label"], held_out["prediction"]
    assert values.shape == (ROWS // 4, 3)
    for name, function in (("mae", sk.mean_absolute_error), ("r2", sk.r2_score)):
        each = function(truth, values, multioutput="raw_values")
        named = {f"{name}/t{place}": value for place, value in enumerate(each)}
        for key, value in (named | {name: each.mean()}).items():
            assert found["metrics"][key] == pytest.approx(value, rel=1e-4), key
    assert found["headline"] == {"metric": "r2", "mode": "max", "value": found["metrics"]["r2"]}
    assert set(found["samples"]["hardest"][0]) >= {"label", "predicted", "loss", "features"}
    assert found["samples"]["hardest"][0]["label"].startswith("t0 ")


def test_a_resnet_answers_in_the_units_of_the_labels(tmp_path):
    generator, rows = np.random.default_rng(5), 16
    images = generator.integers(0, 256, (rows, 8, 8, 3)).astype(np.uint8)
    labels = (1000 + 50 * generator.random(rows)).astype(np.float32)
    columns = {"image": "uint8[8,8,3]", "labels": "float32"}
    source = Labelled(
        Schema(columns=columns, task="regression"), in_thirds(rows), image=images, labels=labels
    )
    place = sealed(tmp_path / "data", source)
    spec = run_of("resnet", trainer__max_epochs=1, global_batch=8, model_args={"stem": "large"})
    file = trained(tmp_path / "run", place, spec)
    found, held_out = evaluated(file, place, spec), predicted(file, place, spec, rows // 4)
    weights, train = load_file(file), labels[in_thirds(rows) == 0].astype(np.float64)
    assert float(weights["target_mean"]) == pytest.approx(train.mean(), rel=1e-6)
    error = sk.mean_squared_error(held_out["label"], held_out["prediction"])
    assert found["metrics"]["mse"] == pytest.approx(error, rel=1e-4)
    assert abs(held_out["prediction"] - 1000).max() < 500


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_resnet_takes_tables_with_and_without_weights(task, weighted):
    columns = {"features": "uint8[3,8,8]", "labels": "float32", "weight": "float32"}
    columns = columns if weighted else {key: columns[key] for key in ("features", "labels")}
    model = ResNet(0, columns, task=task, num_targets=2)
    model.log = lambda *_, **__: None
    batch = {"features": torch.zeros(3, 3, 8, 8, dtype=torch.uint8), "labels": torch.ones(3, 2)}
    weights = {"weight": torch.tensor([1.0, 1.0, 0.0]), "weight.mean_count": torch.tensor(2.0)}
    given = {**batch, **weights} if weighted else tuple(batch.values())
    assert model(batch["features"]).shape == (3, 2)
    model.eval()
    losses = model._row_losses(model(batch["features"]), batch["labels"])
    expected = losses[:2].mean() if weighted else losses.mean()
    torch.testing.assert_close(model.training_step(given, 0), expected)
    with pytest.raises(ConfigError, match="needs at least 2 classes"):
        ResNet(0, columns)


def test_no_statistic_sees_a_held_out_label(tmp_path):
    _, labels = of_numbers(tmp_path / "data")
    poisoned = np.where(in_thirds(ROWS) == 2, np.float32(1e30), labels)[:, None]
    spec, found = run_of("mlp", trainer__max_epochs=1), []
    for name, of in (("plain", labels[:, None]), ("poisoned", poisoned)):
        place, _ = of_numbers(tmp_path / name, labels=of)
        found.append(trained(tmp_path / f"{name}-run", place, spec).read_bytes())
    assert found[0] == found[1]


def test_a_constant_target_and_targets_that_are_not_scaled():
    model = Classifier(task="regression", num_targets=2)
    model.set_target_scale([3.0, 5.0], [0.0, 2.0])
    outputs = model.scaled_back(torch.tensor([[1.0, 1.0]]))
    assert outputs.tolist() == [[4.0, 7.0]]
    plain = Classifier(task="regression", num_targets=2, scale_targets=False)
    assert plain.scaled_back(outputs) is outputs
    assert not plain.state_dict()


@pytest.mark.parametrize(
    ("loss", "expected"), [("mse", 2.25), ("mae", 1.5), ("huber", 1.0)], ids=str
)
def test_losses_are_of_errors_in_deviations(loss, expected):
    model = Classifier(task="regression", num_targets=1, loss=loss)
    model.set_target_scale([0.0], [2.0])
    found = model._row_losses(torch.tensor([[7.0]]), torch.tensor([4.0]))
    assert found.tolist() == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mae"}, "model_args.loss=mae is no loss for task: classification"),
        ({"loss": "mad", "task": "regression", "num_targets": 1}, 'did you mean "mae"'),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Classifier(**arguments)


def test_labels_that_are_neither_class_nor_number_are_refused(tmp_path):
    schema = Schema(columns={"features": "float32[3]"}).record()
    with pytest.raises(
        ConfigError, match="neither classes nor numbers as labels; set source.label"
    ):
        make_model(run_of("tabular"), schema)


# ---- flags


def test_flags_are_learnt_and_predicted_with_their_probabilities(tmp_path):
    generator = np.random.default_rng(4)
    features = generator.normal(size=(ROWS, 3)).astype(np.float32)
    labels = (features > 0.2).astype(np.uint8)
    schema = Schema(feature_shape=(3,), task="multilabel", targets=("cat", "dog", "eel"))
    source = Labelled(schema, in_thirds(ROWS), features=features, labels=labels)
    place, spec = sealed(tmp_path / "data", source), run_of("mlp", trainer__max_epochs=8)
    file = trained(tmp_path / "run", place, spec)
    found, held_out = evaluated(file, place, spec), predicted(file, place, spec, ROWS // 4)
    truth, values = held_out["label"], held_out["prediction"]
    assert (values == (held_out["probability"] > 0.5)).all()
    expected = sk.f1_score(truth, values, average=None, zero_division=0)
    named = [found["metrics"][f"f1/{name}"] for name in ("cat", "dog", "eel")]
    assert named == pytest.approx(expected)
    assert found["headline"]["metric"] == "f1_macro"
    assert found["headline"]["value"] == pytest.approx(expected.mean())
    assert expected.mean() > 0.8
    assert found["metrics"]["auroc"] == pytest.approx(
        sk.roc_auc_score(truth, held_out["probability"]), abs=0.01
    )


@given(
    seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 60), num_targets=st.integers(1, 4),
    block_rows=st.integers(1, 30),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_flags_streamed_equal_scikit_learn(seed, num_rows, num_targets, block_rows):
    generator = np.random.default_rng(seed)
    # multiples of a bin's width, so that equal scores are those of scikit-learn
    logits = generator.integers(-40, 40, (num_rows, num_targets)).astype(np.float32) / 16
    label = generator.integers(0, 2, (num_rows, num_targets)).astype(np.uint8)
    task = Flags([f"t{place}" for place in range(num_targets)], "r")
    for block in blocks(
        [task.score(torch.from_numpy(logits), torch.from_numpy(label))], block_rows
    ):
        task.add(block)
    found, said = task.result().metrics, logits > 0
    assert found["loss"] == pytest.approx(np.mean(np.logaddexp(0, logits) - label * logits), 1e-6)
    for average in ("micro", "macro"):
        expected = sk.f1_score(
            label.ravel() if num_targets == 1 else label,
            said.ravel() if num_targets == 1 else said,
            average="binary" if num_targets == 1 else average,
            zero_division=0,
        )
        assert found[f"f1_{average}"] == pytest.approx(expected)
    for place in range(num_targets):
        truth, score = label[:, place], logits[:, place]
        if truth.any():
            precision = sk.average_precision_score(truth, score)
            assert found[f"ap/t{place}"] == pytest.approx(precision)
        else:
            assert found[f"ap/t{place}"] is None
        if 0 < truth.sum() < num_rows:
            assert found[f"auroc/t{place}"] == pytest.approx(sk.roc_auc_score(truth, score))
        else:
            assert found[f"auroc/t{place}"] is None


@given(
    seed=st.integers(0, 2**32 - 1), num_rows=st.integers(2, 60), num_targets=st.integers(2, 4),
    block_rows=st.integers(1, 30),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_several_numbers_streamed_equal_scikit_learn(seed, num_rows, num_targets, block_rows):
    generator = np.random.default_rng(seed)
    label = generator.normal(100, 3, (num_rows, num_targets)).astype(np.float32)
    values = label + generator.normal(size=label.shape).astype(np.float32)
    names = [f"t{place}" for place in range(num_targets)]
    task, weighted = Regression(num_rows, "r", names), WeightedMeans("regression")
    weight = generator.uniform(0, 2, num_rows)
    scored = {**task.score(torch.from_numpy(values), torch.from_numpy(label)), "weight": weight}
    for block in blocks([scored], block_rows):
        task.add(block)
        weighted.add(block)
    found = task.result().metrics
    exact = label.astype(np.float64), values.astype(np.float64)
    for name, function in (
        ("mse", sk.mean_squared_error),
        ("rmse", sk.root_mean_squared_error),
        ("r2", sk.r2_score),
    ):
        assert found[name] == pytest.approx(function(*exact), rel=1e-4), name
    mae = sk.mean_absolute_error(*exact, sample_weight=weight)
    assert weighted.result()["weighted_mae"] == pytest.approx(mae, rel=1e-4)


def test_columns_of_several_values_come_from_other_ranks_in_their_shapes():
    """One rank's own path keeps the columns; this is what the gathered path makes of them."""
    ranks, columns = EvaluationRanks(rank=0, size=2), {
        "place": np.arange(3), "label": np.arange(6, dtype=np.float32).reshape(3, 2)
    }  # fmt: skip
    ranks_collect = lambda sent: [sent]  # noqa: E731
    object.__setattr__(ranks, "_collect", ranks_collect)

    class Order:
        num_blocks = 1

        def bounds(self, blocks):
            return np.array([0]), np.array([3])

    (found,) = ranks.in_order(iter([columns]), Order())
    assert found["label"].tolist() == columns["label"].tolist()
    assert {name: of.dtype for name, of in found.items()} == {
        name: of.dtype for name, of in columns.items()
    }


# ---- weights


def weighted_rows(folder, rows=40, **more):
    features, labels = numbers(rows=rows)
    weight = np.random.default_rng(6).uniform(0, 3, rows).astype(np.float32)
    schema = Schema(feature_shape=(3,), task="regression", weighted=True)
    given_rows = {"features": features, "labels": labels[:, 0], "weight": weight, **more}
    splits = in_thirds(rows)
    return sealed(folder, Labelled(schema, splits, num_shards=2, **given_rows)), given_rows


@pytest.mark.parametrize("changes", [{}, {"data__last_batch": "pad"}], ids=["dropped", "padded"])
@pytest.mark.parametrize("stream", ["columns", "samples"])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_the_steps_of_all_ranks_average_to_the_weighted_mean(
    tmp_path, ranks, accumulate, stream, changes
):
    place, _ = weighted_rows(tmp_path / "data")
    changes = changes | ({"data__transform": f"{__name__}:Same"} if stream == "samples" else {})
    spec = run_of(
        "linear", global_batch=8, devices=ranks, trainer__accumulate=accumulate, data__workers=0, **changes
    )  # fmt: skip
    model, steps, used = None, {}, {}
    for rank in range(ranks):
        world = replace_world(rank, ranks)
        data = ShardDataModule(spec.settings, [place], world)
        torch.manual_seed(1)
        model = make_model(spec, data.manifest.schema)
        model.log = lambda *_, **__: None
        for number, batch in enumerate(data.loader.stream.batches(0, 0)):
            batch = data.on_after_batch_transfer(batch, 0)
            step = number // accumulate
            loss = float(model.training_step(batch, number)) / (ranks * accumulate)
            steps[step] = steps.get(step, 0.0) + loss
            counts = batch["weight"] * (batch["weights"] > 0 if "weights" in batch else 1)
            losses = model._row_losses(model(batch["features"]), batch["labels"])
            total = used.setdefault(step, [0.0, 0.0])
            total[0] += float((losses * counts).sum())
            total[1] += float(counts.sum())
    assert len(steps) == (3 if changes.get("data__last_batch") else 2)
    assert steps == pytest.approx({step: a / b for step, (a, b) in used.items()}, rel=1e-5)


def replace_world(rank, ranks):
    from dataclasses import replace

    return replace(ALONE, rank=rank, local_rank=rank, world_size=ranks, local_world_size=ranks)


class Same:
    """A transform that changes nothing."""

    def __call__(self, sample, rng):
        return sample


def test_a_weight_of_two_is_a_row_that_is_there_twice(tmp_path):
    features, labels = numbers(rows=32)
    splits, schema = in_thirds(32), Schema(feature_shape=(3,), task="regression", weighted=True)
    twice = np.arange(32) % 3 == 0
    place = sealed(
        tmp_path / "weighted",
        Labelled(
            schema, splits, features=features, labels=labels[:, 0],
            weight=np.where(twice, 2, 1).astype(np.float32),
        ),
    )  # fmt: skip
    rows = np.repeat(np.arange(32), np.where(twice, 2, 1))
    repeated = sealed(
        tmp_path / "repeated",
        Labelled(
            Schema(feature_shape=(3,), task="regression"), splits[rows], features=features[rows],
            labels=labels[rows, 0],
        ),
    )  # fmt: skip
    spec = run_of("linear", data__normalize="none", model_args={"scale_targets": False})
    file = trained(tmp_path / "run", place, spec)
    mine, other = evaluated(file, place, spec), evaluated(file, repeated, spec)
    for name in ("mse", "mae"):
        assert mine["metrics"][f"weighted_{name}"] == pytest.approx(
            other["metrics"][name], rel=1e-5
        )
        assert mine["metrics"][name] != pytest.approx(other["metrics"][name], rel=1e-3)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1.0, "row id 7 has the weight -1.0, expected a weight of at least 0"),
        (np.nan, "row id 7 contains a missing or infinite value in weight"),
    ],
)
def test_a_weight_that_is_none_names_its_row(tmp_path, weight, message):
    with pytest.raises(DataError, match=message):
        weighted_rows(tmp_path, weight=np.where(np.arange(40) == 7, weight, 1).astype(np.float32))


def test_a_flag_of_two_names_its_row(tmp_path):
    schema = Schema(feature_shape=(1,), task="multilabel", targets=("a", "b"))
    labels = np.array([[0, 1], [2, 0]], np.uint8)
    source = Labelled(schema, np.zeros(2, int), features=np.ones((2, 1), np.float32), labels=labels)
    with pytest.raises(DataError, match=r"row id 1 has the label \[2, 0\], expected 0 or 1"):
        sealed(tmp_path, source)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(feature_shape=(1,), task="multilabel"),
        Schema(feature_shape=(1,), targets=("a", "b")),
        Schema(columns={"features": "float32[1]", "labels": "float32"}, task="regression", targets=("a", "b")),
    ],
)  # fmt: skip
def test_a_schema_whose_targets_do_not_match_is_refused(schema):
    with pytest.raises(DataError, match=r"targets and labels=.*correct the schema"):
        schema.record()


def test_a_schema_without_its_weights_is_refused():
    with pytest.raises(DataError, match=r'add "weight": "float32" to the columns'):
        Schema(columns={"features": "float32[1]"}, weighted=True).record()


# ---- categories


def of_categories(folder):
    generator = np.random.default_rng(8)
    codes = np.stack([generator.integers(0, size, ROWS) for size in (9, 3)], axis=1)
    effects = generator.normal(size=9), generator.normal(size=3)
    labels = sum(effect[codes[:, place]] for place, effect in enumerate(effects))
    schema = Schema(
        columns={"features": "float32[2]", "categories": "int64[2]", "labels": "float32"}
    )
    features = generator.normal(size=(ROWS, 2)).astype(np.float32)
    columns = {"features": features, "categories": codes, "labels": labels.astype(np.float32)}
    return sealed(folder, Labelled(schema, in_thirds(ROWS), **columns))


def test_categories_are_learnt_by_their_embeddings(tmp_path):
    place = of_categories(tmp_path / "data")
    spec = run_of("tabular", trainer__max_epochs=8, model_args={"category_sizes": [9, 3]})
    file = trained(tmp_path / "run", place, spec)
    found, held_out = evaluated(file, place, spec), predicted(file, place, spec, ROWS // 4)
    r2 = sk.r2_score(held_out["label"], held_out["prediction"])
    assert found["metrics"]["r2"] == pytest.approx(r2, rel=1e-4)
    assert r2 > 0.8


CATEGORIES = {"categories": "int64[2]", "labels": "int64"}


def tabular(columns, classes=("a", "b"), **args):
    schema = Schema(columns=columns, classes=classes).record()
    return make_model(run_of("tabular", model_args=args), schema).eval()


def test_a_table_of_categories_alone_and_the_mean_of_the_members_probabilities():
    model = tabular(CATEGORIES, category_sizes=[4, 2])
    codes = torch.tensor([[3, 1], [0, 0]])
    assert model.input_columns({}) == ("categories",)
    shares = model(codes).softmax(1)
    torch.testing.assert_close(shares, model._members(codes).softmax(2).mean(1))
    torch.testing.assert_close(model(codes[:1]), model(codes)[:1])  # a row's output is its own


@pytest.mark.parametrize(
    ("columns", "args", "message"),
    [
        (CATEGORIES, {}, "has 0 category_sizes for the column categories, which is int64"),
        ({**CATEGORIES, "categories": "float32[2]"}, {"category_sizes": [4, 2]}, "expected integers such as int64"),
        ({"x": "float32[2]", "labels": "int64"}, {}, "needs a column `features` of numbers or a column `categories`"),
    ],
)  # fmt: skip
def test_categories_of_unknown_size_are_refused(columns, args, message):
    with pytest.raises(ConfigError, match=message):
        tabular(columns, **args)


def test_a_category_outside_its_size_is_named():
    model = tabular(CATEGORIES, category_sizes=[4, 2])
    with pytest.raises(DataError, match="column 1 of categories has the value 2, expected 0 to 1"):
        model(torch.tensor([[3, 2]]))
