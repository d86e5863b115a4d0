"""Sources and shards: the same bytes whoever writes them, readable by others, sealed whole."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from shardline.errors import DataError
from shardline.shards import SPLITS, assign_splits, build_shard, make_source, seal
from shardline.sources import Schema, Source, Table
from shardline.sources.digits import Digits
from shardline.sources.synthetic import Synthetic
from shardline.statistics import Moments

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


class Given(Source):
    """A source of one shard with rows given by the test."""

    def __init__(self, features, labels=None, classes=("a", "b"), ids=None):
        super().__init__(num_shards=1)
        self.ids = ids
        self.features = np.asarray(features, dtype=np.float64)
        self.labels = (
            np.zeros(len(self.features), dtype=np.int64) if labels is None else np.asarray(labels)
        )
        self.classes = classes

    @property
    def schema(self):
        task = "classification" if self.classes else "regression"
        return Schema(feature_shape=(3,), task=task, classes=self.classes)

    def iter_tables(self, shard):
        ids = np.arange(len(self.labels)) if self.ids is None else np.asarray(self.ids)
        yield Table(ids=ids, features=self.features, labels=self.labels)


def test_shard_k_is_the_same_whoever_writes_it_and_in_whatever_order(tmp_path):
    def record(shard, folder):
        source = Synthetic(num_shards=4, rows_per_shard=50, features=5, seed=9)
        return build_shard(source, shard, SHARES, tmp_path / folder)[0]

    forward = [record(shard, "a") for shard in range(4)]
    backward = [record(shard, "b") for shard in reversed(range(4))]
    assert forward == backward[::-1]
    assert len({r.sha256 for r in forward}) == 4


def test_a_shard_holds_its_rows_in_split_order_and_opens_without_shardline(tmp_path):
    record, _ = build_shard(Digits(num_shards=3), 1, SHARES, tmp_path)
    with safe_open(tmp_path / record.file, framework="np") as file:
        ids, features, labels = (file.get_tensor(key) for key in ("ids", "features", "labels"))
    assert sorted(ids) == list(range(599, 1198))
    assert features.shape == (599, 8, 8)
    assert features.dtype == np.float32
    splits = assign_splits(ids, SHARES)
    assert list(splits) == sorted(splits)
    assert record.rows == dict(zip(SPLITS, np.bincount(splits, minlength=3), strict=True))
    from sklearn.datasets import load_digits

    assert (labels == load_digits().target[ids]).all()


def test_splits_follow_their_shares_and_a_rows_split_never_changes():
    ids = np.arange(100_000)
    splits = assign_splits(ids, SHARES)
    assert np.bincount(splits) / len(ids) == pytest.approx([0.8, 0.1, 0.1], abs=0.005)
    assert (assign_splits(ids[:10], SHARES) == splits[:10]).all()
    assert (assign_splits(ids[::-1], SHARES) == splits[::-1]).all()


def test_merged_moments_equal_those_of_the_whole():
    features = np.random.default_rng(0).normal(1e4, 3, (1000, 4)).astype(np.float32)
    parts = [Moments.of(features[a:b]) for a, b in ((0, 1), (1, 1), (1, 700), (700, 1000))]
    merged = Moments.merge(parts).summary()
    assert merged["count"] == 1000
    assert merged["mean"] == pytest.approx(features.mean(0, dtype=np.float64))
    assert merged["std"] == pytest.approx(features.std(0, dtype=np.float64))
    assert merged["max"] == pytest.approx(features.max(0))


def test_synthetic_labels_follow_the_known_model():
    source = Synthetic(num_shards=1, rows_per_shard=20_000, features=10, seed=2, signal=3.0)
    tables = list(source.iter_tables(0))
    features = np.concatenate([t.features for t in tables])
    labels = np.concatenate([t.labels for t in tables])
    accuracy = ((features @ source.weights > 0) == labels).mean()
    assert accuracy == pytest.approx(source.reference["value"], abs=0.01)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Given([[1, 2, np.nan]]), "row id 0 holds a missing or infinite feature"),
        (Given([[1, 2]]), r"gave features \(1, 2\).*its schema says \(3,\)"),
        (Given([[1, 2, 3]], labels=[2]), r"label 2 is outside 0\.\.1"),
        (Given([[1, 2, 3]] * 2, ids=[7, 7]), "row id 7 stands twice"),
        (
            Given([[1, 2, 3]], labels=[np.nan], classes=()),
            "row id 0 has a missing or infinite label",
        ),
        (Given([[1, 2, 3]], labels=[-1]), r"label -1 is outside 0\.\.1"),
        (Given([[1, 2, 3]], labels=[0, 1]), "2 labels and 2 ids|gave features"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_written(tmp_path, source, message):
    with pytest.raises(DataError, match=message):
        build_shard(source, 0, SHARES, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_source_with_unknown_options_or_of_another_class_is_refused():
    with pytest.raises(DataError, match="refused its options"):
        make_source(
            "shardline.sources.digits:Digits",
            {"type": "x", "options": {"colour": 1}},
            num_shards=1,
            files=(),
        )
    with pytest.raises(DataError, match="is not a subclass"):
        make_source("shardline.sources.base:Schema", {"type": "x"}, num_shards=1, files=())


def parts_of(source, folder):
    """Return a part document per shard."""
    built = [build_shard(source, shard, SHARES, folder) for shard in range(source.num_shards)]
    return [{"shards": [vars(record)], "statistics": [moments]} for record, moments in built]


def test_a_manifest_does_not_depend_on_how_the_parts_were_cut(tmp_path):
    source = Synthetic(num_shards=4, rows_per_shard=100, features=5)
    parts = parts_of(source, tmp_path)
    joined = {
        key: [item for part in parts for item in part[key]] for key in ("shards", "statistics")
    }
    sealed = [
        seal(given, dataset="d-0", name="d", source=source, document={"stage": "dataset"})
        for given in (parts, parts[::-1], [joined])
    ]
    assert sealed[0] == sealed[1] == sealed[2]
    assert sum(sealed[0]["splits"].values()) == 400
    assert json.loads(json.dumps(sealed[0]))["shards"][0]["file"] == "shard-00000.safetensors"


def test_a_missing_or_doubled_shard_cannot_be_sealed(tmp_path):
    source = Synthetic(num_shards=3, rows_per_shard=100, features=5)
    parts = parts_of(source, tmp_path)
    for wrong in (parts[:2], [*parts, parts[0]]):
        with pytest.raises(DataError, match="not each of 3 once"):
            seal(wrong, dataset="d-0", name="d", source=source, document={})


def test_an_empty_split_cannot_be_sealed(tmp_path):
    source = Given(np.ones((2, 3)), classes=("a",))
    with pytest.raises(DataError, match="no row fell into the .* split"):
        seal(parts_of(source, tmp_path), dataset="d-0", name="d", source=source, document={})
