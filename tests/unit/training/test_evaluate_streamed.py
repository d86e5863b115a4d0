"""Evaluations batch by batch equal the same formulas over all rows at once, in flat memory."""

import json
import weakref
from typing import ClassVar

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from torch.nn import functional

from shardline.core.files import json_bytes
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training import scoring
from shardline.training.confusion import MAX_LISTED, MAX_TABLE_CLASSES, Confusion
from shardline.training.diagnostics import MAX_POINTS, MAX_SAMPLES, NUM_BINS, Hardest, Spread
from tests.support.evaluated_model import evaluated

SEEDS = st.integers(0, 2**32 - 1)


def whole(logits, labels):
    """Return what the whole split's outputs [N, C] give at once, as before evaluations were streamed."""
    predicted, logits = logits.argmax(dim=1), logits.double()
    confidence = (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp().numpy()
    is_right = (predicted == labels).numpy()
    place = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    sums, rights = (np.bincount(place, weights, NUM_BINS) for weights in (confidence, is_right))
    loss = functional.cross_entropy(logits, labels, reduction="none").numpy()
    mistakes = np.flatnonzero(~is_right)
    return {
        "accuracy": is_right.sum() / len(labels),
        "loss": float(functional.cross_entropy(logits, labels)),
        "ece": np.abs(sums - rights).sum() / len(labels),
        "hardest": mistakes[np.argsort(-loss[mistakes], kind="stable")[:MAX_SAMPLES]].tolist(),
        "predicted": predicted.numpy(),
    }


def streamed(task, outputs, labels, batches, block_rows):
    """Evaluate outputs batch by batch; return the result, and the places of the rows that are kept."""
    typical, hardest = Spread(len(labels), MAX_SAMPLES), Hardest()
    parts = zip(outputs.split(batches), labels.split(batches), strict=True)
    for block in scoring.blocks((task.score(*part) for part in parts), block_rows):
        for part in (task, typical, hardest):
            part.add(block)
    return encode(task.result()), typical.rows["place"].tolist(), hardest.rows["place"].tolist()


def cuts(num_rows, generator, max_cuts=8):
    """Return sizes of batches that make up a number of rows."""
    inner = generator.integers(1, num_rows, generator.integers(0, max_cuts)) if num_rows > 1 else []
    edges = np.unique([0, *inner, num_rows])
    return np.diff(edges).tolist()


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 300), st.integers(2, 130), st.sampled_from((1, 7, 64, 300, 16384)))
def test_a_classifier_streamed_equals_the_whole_split(seed, num_rows, num_classes, block_rows):
    generator = np.random.default_rng(seed)
    scale = generator.choice([0.1, 3, 60])
    logits = torch.from_numpy(generator.normal(0, scale, (num_rows, num_classes))).float()
    labels = torch.from_numpy(generator.integers(0, num_classes, num_rows))
    task = scoring.Classification([str(one) for one in range(num_classes)], "x")
    found, typical, hardest = streamed(task, logits, labels, cuts(num_rows, generator), block_rows)
    expected = whole(logits, labels)
    ways = found["metrics"]["loss"], found["calibration"]["ece"]
    if num_rows <= block_rows:  # the same bits as before evaluations were streamed
        assert ways == (expected["loss"], expected["ece"])
    assert ways == pytest.approx((expected["loss"], expected["ece"]), rel=1e-12, abs=1e-14)
    assert found["metrics"]["accuracy"] == expected["accuracy"] == found["headline"]["value"]
    assert hardest == expected["hardest"]
    assert typical == [
        (2 * i + 1) * num_rows // (2 * min(num_rows, 12)) for i in range(min(num_rows, 12))
    ]
    shares = logits.double().softmax(dim=1).numpy()
    classes = range(num_classes)
    reference = metrics.log_loss(labels, shares, labels=classes) if scale < 60 else expected["loss"]
    assert found["metrics"]["loss"] == pytest.approx(reference, rel=1e-9)
    counts = metrics.confusion_matrix(labels, expected["predicted"], labels=classes)
    check_confusion(found["confusion"], counts)


def check_confusion(found, counts):
    """Hold what is recorded against the whole matrix."""
    if len(counts) <= MAX_TABLE_CLASSES:
        assert found["counts"] == counts.tolist()
        return
    pairs = {(i, j): int(counts[i, j]) for i, j in zip(*np.nonzero(counts), strict=True) if i != j}
    most = sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:MAX_LISTED]
    assert found["mistakes"] == [
        {"truth": str(i), "predicted": str(j), "count": pairs[i, j]} for i, j in most
    ]
    assert (found["num_mistakes"], found["max_undercount"]) == (sum(pairs.values()), 0)
    rows, right = counts.sum(axis=1).tolist(), counts.diagonal().tolist()
    wrong = [i for i in range(len(counts)) if rows[i] > right[i]]
    wrong.sort(key=lambda i: (right[i] / rows[i], -rows[i], i))
    assert found["hardest"] == [
        {"class": str(i), "samples": rows[i], "right": right[i]} for i in wrong[:MAX_LISTED]
    ]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 900), st.sampled_from((1, 7, 64, 300, 16384)), st.booleans())
def test_a_regression_streamed_equals_the_whole_split(seed, num_rows, block_rows, is_flat):
    generator = np.random.default_rng(seed)
    truth, values = torch.from_numpy(generator.normal(3, 9, (2, num_rows))).float()
    outputs = values if is_flat else values.unsqueeze(1)
    task = scoring.Regression(num_rows, "x")
    found, _, hardest = streamed(task, outputs, truth, cuts(num_rows, generator), block_rows)
    error = (values - truth).double()
    ways = found["metrics"]["mse"], found["metrics"]["mae"]
    expected = float((error**2).mean()), float(error.abs().mean())
    if num_rows <= block_rows:
        assert ways == expected
    assert ways == pytest.approx(expected, rel=1e-12)
    assert ways == pytest.approx(
        (metrics.mean_squared_error(truth, values), metrics.mean_absolute_error(truth, values)),
        rel=1e-5,
    )
    assert hardest == np.argsort(-(error**2).numpy(), kind="stable")[:MAX_SAMPLES].tolist()
    kept = min(num_rows, MAX_POINTS)
    places = [(2 * index + 1) * num_rows // (2 * kept) for index in range(kept)]
    assert found["residuals"]["predicted"] == [float(f"{values[i]:.6g}") for i in places]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 40), st.integers(1, 8), st.integers(1, 2000))
def test_a_capped_confusion_keeps_its_bound(seed, num_classes, max_pairs, num_rows):
    generator = np.random.default_rng(seed)
    label, predicted = (generator.zipf(1.5, (2, num_rows)) - 1) % num_classes
    found = Confusion(num_classes, max_pairs=max_pairs)
    start = 0
    for size in cuts(num_rows, generator, max_cuts=60):
        found.add(label[start : start + size], predicted[start : start + size])
        start += size
    counts = metrics.confusion_matrix(label, predicted, labels=range(num_classes))
    assert found.rows.tolist() == counts.sum(axis=1).tolist()
    assert found.right.tolist() == counts.diagonal().tolist()
    undercount = counts - found.table()
    assert undercount.min() >= 0
    num_mistakes = int(counts.sum() - counts.trace())
    assert undercount.max() <= found.max_undercount <= num_mistakes / (max_pairs + 1)
    np.fill_diagonal(counts, 0)
    if np.count_nonzero(counts) <= max_pairs:
        assert found.max_undercount == 0


class Many(Source):
    """Rows of many classes whose names are long."""

    def __init__(self, *, num_shards, num_classes, rows):
        super().__init__(num_shards=num_shards)
        self._classes = tuple(
            f"class {i:05d}, a name of forty characters" for i in range(num_classes)
        )
        self.ids = np.arange(rows * num_shards)
        generator = np.random.default_rng(5)
        self.features = generator.normal(size=(rows * num_shards, 8)).astype(np.float32)
        self.labels = generator.integers(0, num_classes, rows * num_shards)
        self._rows = rows

    @property
    def schema(self):
        return Schema(
            feature_shape=(8,),
            feature_dtype="float32",
            task="classification",
            classes=self._classes,
        )

    def iter_tables(self, shard):
        part = slice(shard * self._rows, (shard + 1) * self._rows)
        yield Table(ids=self.ids[part], features=self.features[part], labels=self.labels[part])


@pytest.mark.parametrize("num_classes", [MAX_TABLE_CLASSES, 1000])
def test_an_evaluation_of_many_classes_is_a_small_file(tmp_path, num_classes):
    result, _ = evaluated(
        tmp_path, Many(num_shards=1, num_classes=num_classes, rows=20 * num_classes)
    )
    assert len(json_bytes(result)) < 200_000
    assert json.loads(json_bytes(result)) == result


class Remembering(pl.LightningModule):
    """Counts how many of its outputs are in memory when it is called again."""

    alive: ClassVar[list[int]] = []
    made: ClassVar[list[weakref.ref]] = []

    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(num_classes))
        self._num_classes = num_classes

    def forward(self, features):
        self.alive.append(sum(reference() is not None for reference in self.made))
        memory = np.zeros((len(features), self._num_classes), np.float32)
        memory[:, 1:] = features[:, :1].numpy()
        self.made.append(weakref.ref(memory))  # which torch's storage holds as long as it lives
        return torch.from_numpy(memory)


def test_no_more_than_one_earlier_batch_of_outputs_is_in_memory(tmp_path):
    Remembering.alive.clear()
    Remembering.made.clear()
    source = Many(num_shards=1, num_classes=50, rows=500)
    result, _ = evaluated(tmp_path, source, model_class=Remembering)
    assert len(Remembering.made) == -(-result["num_samples"] // 16) > 10
    assert max(Remembering.alive) <= 1
