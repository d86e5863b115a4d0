"""Sources and shards: the same bytes whoever writes them, readable by others, sealed whole."""

import hashlib
import json

import numpy as np
import pytest
from blake3 import blake3
from msgspec import convert
from safetensors import safe_open

from shardline.core.files import read_object
from shardline.core.job_progress import job_progress
from shardline.data.build import build_shards, describe_part, make_source, seal
from shardline.data.sources.digits import Digits
from shardline.data.sources.synthetic import Synthetic
from shardline.data.splits import assign_splits
from shardline.errors import DataError
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.sources import SPLITS, Schema, Source, Table
from tests.support.built import build

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


def _build_shard(source, shard, splits, folder):
    return next(build_shards(source, [shard], splits, folder))


class Given(Source):
    """A source of one shard with rows given by the test."""

    def __init__(self, features, labels=None, classes=("a", "b"), ids=None, splits=None):
        super().__init__(num_shards=1)
        self.features, self.splits, self.classes = features, splits, classes
        self.labels = np.zeros(len(features), dtype=np.int64) if labels is None else labels
        self.ids = np.arange(len(features)) if ids is None else ids

    @property
    def schema(self):
        task = "classification" if self.classes else "regression"
        return Schema(feature_shape=(3,), task=task, classes=self.classes)

    def iter_tables(self, shard):
        yield Table(ids=self.ids, features=self.features, labels=self.labels, splits=self.splits)


def test_shard_k_is_the_same_whoever_writes_it_and_in_whatever_order(tmp_path):
    def record(shard, folder):
        source = Synthetic(num_shards=4, rows_per_shard=50, features=5, seed=9)
        return _build_shard(source, shard, SHARES, tmp_path / folder)[0]

    forward = [record(shard, "a") for shard in range(4)]
    backward = [record(shard, "b") for shard in reversed(range(4))]
    assert forward == backward[::-1]
    assert len({r.blake3 for r in forward}) == 4


def test_memory_used_again_leaves_no_trace_in_the_shards_that_follow(tmp_path):
    """Shards of several blocks of memory each: 10 MB, of which the part of a split varies."""

    def source():
        return Synthetic(num_shards=5, rows_per_shard=2500, features=1001, seed=1)

    together = [record for record, _ in build_shards(source(), range(5), SHARES, tmp_path / "a")]
    alone = [_build_shard(source(), shard, SHARES, tmp_path / "b")[0] for shard in range(5)]
    assert together == alone


def test_a_shard_holds_its_rows_in_split_order_and_opens_without_shardline(tmp_path):
    record, _ = _build_shard(Digits(num_shards=3), 1, SHARES, tmp_path)
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


@pytest.mark.parametrize("features", [1, 10, 1000])
def test_synthetic_labels_follow_the_known_model(features):
    source = Synthetic(num_shards=1, rows_per_shard=20_000, features=features, seed=2, signal=3.0)
    tables = list(source.iter_tables(0))
    rows = np.concatenate([table.features for table in tables])
    labels = np.concatenate([table.labels for table in tables])
    assert np.linalg.norm(source.weights) == pytest.approx(3.0)
    chance = 1 / (1 + np.exp(-(rows @ source.weights)))
    assert ((chance > 0.5) == labels).mean() == pytest.approx(source.reference["value"], abs=0.01)
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 0.6), (0.9, 1.0)):  # calibrated all along
        here = (chance >= low) & (chance <= high)
        assert labels[here].mean() == pytest.approx(chance[here].mean(), abs=0.03)


def test_the_reference_is_the_mean_of_the_better_chance_over_normal_logits():
    source = Synthetic(num_shards=1, rows_per_shard=1, features=1, signal=3.0)
    logits = np.linspace(-12, 12, 100_001)
    density = np.exp(-((logits / 3) ** 2) / 2)
    exact = np.average(1 / (1 + np.exp(-np.abs(logits))), weights=density)
    assert source.reference["value"] == pytest.approx(exact, abs=2e-4)


def test_synthetic_features_are_standard_normal_and_independent():
    source = Synthetic(num_shards=1, rows_per_shard=50_000, features=8, seed=4)
    rows = np.concatenate([table.features for table in source.iter_tables(0)])
    assert rows.dtype == np.float32
    assert rows.mean(axis=0) == pytest.approx(np.zeros(8), abs=0.02)
    assert np.cov(rows.T) == pytest.approx(np.eye(8), abs=0.03)
    assert np.corrcoef((rows**2).T) == pytest.approx(np.eye(8), abs=0.03)
    below = [(rows < edge).mean() for edge in (-3, -2, -1, 0, 1, 2, 3)]
    assert below == pytest.approx([0.0013, 0.0228, 0.1587, 0.5, 0.8413, 0.9772, 0.9987], abs=0.003)


ROW = [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Given(np.array([[1, 2, np.nan]])), "row id 0 contains a missing or infinite feature"),
        (Given(np.array([[1, 2, 1e300]])), "row id 0 contains .* range of float32"),
        (Given([[1.0, 2.0]]), r"features of shape \(1, 2\) with 1 ids, expected \(1, 3\) by its"),
        (Given([ROW, [1.0]]), "returned features of different lengths, expected rows of one shape"),
        (
            Given(np.array([ROW, [1.0]], dtype=object)),
            r"type object \(rows of different lengths, or text",
        ),
        (Given([["1", "2", "x"]]), "returned features of type <U1, expected float32; convert"),
        (Given([ROW], labels=[2]), r"label 2 is not a class, expected 0 to 1"),
        (Given([ROW], labels=[-1]), r"label -1 is not a class, expected 0 to 1"),
        (
            Given([ROW], labels=[0, 1]),
            r"returned labels of shape \(2,\) with 1 ids, expected \(1,\)",
        ),
        (
            Given([ROW], labels=[np.nan]),
            r"labels of type float64 \(a missing value\?\), expected int64",
        ),
        (
            Given([ROW], labels=[0.5]),
            r'expected int64; for regression, use Schema\(task="regression"\) or a column `labels` of type float32$',
        ),
        (
            Given([ROW], labels=[1.0]),
            r"""use Schema\(task="regression"\) .*; for classes, use labels\.astype\("int64"\) in the source$""",
        ),
        (Given([ROW], labels=["a"]), "returned labels of type <U1, expected int64; convert"),
        (
            Given([ROW], labels=[np.nan], classes=()),
            "row id 0 contains a missing or infinite label",
        ),
        (Given([ROW] * 2, ids=[7, 7]), "row id 7 occurs twice"),
        (Given([ROW], ids=[0.5]), r"returned ids of type float64 .* expected int64"),
        (Given([ROW], splits=[3]), "returned split 3, expected 0 to 2 for train, validation, test"),
        (Given([ROW], splits=[0, 1]), r"returned splits of shape \(2,\)"),
        (
            Given(np.empty((0, 3))),
            "has no rows, expected at least one; lower the dataset's `shards`",
        ),
    ],
)
def test_bad_rows_are_named_in_one_sentence_and_nothing_is_written(tmp_path, source, message):
    with pytest.raises(DataError, match=f"^source Given: shard 0.*{message}") as error:
        _build_shard(source, 0, SHARES, tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_features_keep_the_type_of_the_schema_and_only_harmless_casts_are_made(tmp_path):
    class Bytes(Given):
        @property
        def schema(self):
            return Schema(feature_shape=(3,), feature_dtype="uint8", classes=("a", "b"))

    with pytest.raises(DataError, match="returned features of type int64, expected uint8; convert"):
        _build_shard(Bytes(np.array([[1, 2, 300]])), 0, SHARES, tmp_path)
    record, _ = _build_shard(Bytes(np.array([[1, 2, 250]], dtype=np.uint8)), 0, SHARES, tmp_path)
    with safe_open(tmp_path / record.file, framework="np") as file:
        assert file.get_tensor("features").tolist() == [[1, 2, 250]]
        assert file.get_tensor("features").dtype == np.uint8


def test_a_source_that_says_each_rows_split_is_believed(tmp_path):
    source = Given(np.eye(3), labels=[0, 1, 0], splits=[2, 0, 1])
    record, _ = _build_shard(source, 0, {"column": "split"}, tmp_path)
    assert record.rows == {"train": 1, "validation": 1, "test": 1}
    with safe_open(tmp_path / record.file, framework="np") as file:
        assert file.get_tensor("ids").tolist() == [1, 2, 0]
    with pytest.raises(
        DataError, match=r"expected a split for each row since `splits` is {'column': 's"
    ):
        _build_shard(Given(np.eye(3)), 0, {"column": "split"}, tmp_path / "other")


class Broken(Digits):
    """A source whose own code has a mistake."""

    def __init__(self, num_shards: int) -> None:
        raise TypeError("from within")


class Nothing:
    """Neither a source nor a torch dataset."""


def test_a_source_with_unknown_options_or_of_another_class_is_refused():
    with pytest.raises(DataError, match=r"does not take .*; change source\.options"):
        make_source(f"{__name__}:Broken", {"type": "x", "rows": 3}, num_shards=1, files=())
    with pytest.raises(DataError, match="Digits has no option named colour"):
        make_source(
            "shardline.data.sources.digits:Digits",
            {"type": "x", "options": {"colour": 1}},
            num_shards=1,
            files=(),
        )
    with pytest.raises(TypeError, match="from within") as raised:
        make_source(f"{__name__}:Broken", {"type": "x"}, num_shards=1, files=())
    assert raised.traceback[-1].name == "__init__", "the user's own line"
    another = make_source(f"{__name__}:Nothing", {"type": "x"}, num_shards=1, files=())
    with pytest.raises(DataError, match="expected a subclass of shardline.sources.Source, a torch"):
        _ = another.schema


def parts_of(source, folder, shards_per_job=1):
    """Return the lists that the jobs would write."""
    parts = []
    for first in range(0, source.num_shards, shards_per_job):
        shards = range(first, min(first + shards_per_job, source.num_shards))
        built = build_shards(source, shards, SHARES, folder)
        parts.append(describe_part("d-0", built, source.skipped))
    return parts


def sealed(source, parts, document=None):
    return seal(parts, dataset="d-0", source=source, document=document or {})


def test_a_manifest_does_not_depend_on_how_the_parts_were_cut(tmp_path):
    source = Synthetic(num_shards=5, rows_per_shard=100, features=5)
    manifests = [
        json.dumps(encode(sealed(source, parts_of(source, tmp_path, step))))
        for step in (1, 2, 3, 5)
    ]
    assert len(set(manifests)) == 1
    manifest = convert(json.loads(manifests[0]), Manifest)
    assert sum(manifest.splits.values()) == 500
    assert [r.file for r in manifest.shards] == [f"shard-0000{i}.safetensors" for i in range(5)]
    for record in manifest.shards:
        content = (tmp_path / record.file).read_bytes()
        assert (len(content), blake3(content).hexdigest()) == (
            record.bytes,
            record.blake3,
        )


def test_the_statistics_are_those_of_the_train_rows(tmp_path):
    source = Digits(num_shards=3)
    manifest = sealed(source, parts_of(source, tmp_path))
    from sklearn.datasets import load_digits

    digits = load_digits()
    split = assign_splits(np.arange(len(digits.target)), SHARES)
    train = digits.data[split == 0]
    features = manifest.statistics.features
    assert features.count == len(train)
    assert features.mean == pytest.approx(train.mean(axis=0), abs=1e-6)
    assert features.std == pytest.approx(train.std(axis=0), abs=1e-5)
    assert (
        manifest.statistics.class_counts["test"] == np.bincount(digits.target[split == 2]).tolist()
    )


def test_a_missing_or_doubled_shard_cannot_be_sealed(tmp_path):
    source = Synthetic(num_shards=3, rows_per_shard=100, features=5)
    parts = parts_of(source, tmp_path)
    for wrong in (parts[:2], [*parts, parts[0]]):
        with pytest.raises(DataError, match="describe . shards, expected each of 3 once; delete"):
            sealed(source, wrong)


def test_a_held_out_split_may_be_empty_and_the_train_split_may_not(tmp_path):
    source = Given(np.ones((2, 3)), splits=[0, 1])
    assert sealed(source, parts_of(source, tmp_path)).splits == {
        "train": 1,
        "validation": 1,
        "test": 0,
    }
    source = Given(np.ones((2, 3)), splits=[2, 1])
    with pytest.raises(DataError, match="no row fell into the train split, expected at least one"):
        sealed(source, parts_of(source, tmp_path))


def test_a_class_that_only_held_out_rows_have_cannot_be_sealed(tmp_path):
    source = Given(
        np.ones((4, 3)), labels=[0, 0, 1, 1], splits=[0, 1, 2, 2], classes=("cat", "dog")
    )
    message = r'class "dog" \(0 train, 0 validation, 2 test\) has no train row.*; move some of its rows to the train'
    with pytest.raises(DataError, match=message):
        sealed(source, parts_of(source, tmp_path))


def test_classes_without_any_row_are_sealed_and_the_log_names_the_first(tmp_path, caplog):
    classes = ("cat", "dog", *(f"class {number}" for number in range(20_000)))
    source = Given(np.ones((3, 3)), splits=[0, 1, 2], classes=classes)
    manifest = sealed(source, parts_of(source, tmp_path))
    assert manifest.statistics.class_counts["train"][:2] == [1, 0]
    text = "classes without any row: dog, class 0, class 1, class 2, class 3 and 19996 more"
    assert text in caplog.text


@pytest.fixture
def plans(fake):
    """A function that seals a dataset which skips rows, and returns the note of the job."""

    def seal_with(classes, rows=("basic", "plus", "premium"), copies=40):
        lines = [f"{number},{plan}" for number, plan in enumerate(rows * copies)]
        fake.workspace.write("data/plans.csv", "\n".join(["x,plan", *lines, ""]))
        fake.config["datasets"]["table"] = {
            "shards": 2,
            "source": {
                "type": "csv", "files": ["data/plans.csv"], "label": "plan", "classes": classes, "on_bad": "skip",
            },
        }  # fmt: skip
        fake.config["runtime"] = {"strict_env": "warn"}
        project, dataset = fake.load(), fake.run("flat").dataset
        job_progress.begin(fake.workspace.path / "seal.log")
        build(project, dataset)
        return read_object(fake.workspace.path / "seal.progress.json", remedy="")["note"]

    return seal_with


def test_a_misspelt_class_whose_rows_were_skipped_cannot_be_sealed(plans):
    message = (
        r'class "premum" has no row, and source.on_bad: skip left out 40 rows, one of them for its label '
        r"\(data/plans.csv, line 4: column plan is premium, expected one of source.classes \(basic, plus, premum\)\), "
        r"expected a row of each class; correct source.classes, or list there only classes that have rows"
    )
    with pytest.raises(DataError, match=message):
        plans(["basic", "plus", "premum"])


def test_a_misspelt_class_behind_other_bad_rows_cannot_be_sealed(plans):
    rows = ("basic", "plus", *("",) * 30, "premium")
    with pytest.raises(
        DataError, match=r"premum.*column plan is premium, expected one of source.classes"
    ):
        plans(["basic", "plus", "premum"], rows=rows, copies=4)


def test_skipped_rows_of_classes_that_are_not_listed_are_reported_by_the_job(plans):
    found = "40 of 120 rows skipped (33 %); the first: data/plans.csv, line 4: column plan is premium, expected one of"
    assert plans(["basic", "plus"]).startswith(found)


def test_rows_without_a_label_make_no_class_without_rows_a_mistake(plans):
    note = plans(["basic", "plus", "rare"], rows=("basic", "plus", ""))
    assert "column plan is empty" in note


def test_what_a_source_skipped_is_counted_in_the_manifest_and_the_first_20_are_named(tmp_path):
    source = Synthetic(num_shards=3, rows_per_shard=100, features=2)
    source.skipped = {0: [f"a.csv row {row}" for row in range(15)], 2: ["c.csv row 7"] * 30}
    parts = parts_of(source, tmp_path)
    assert [part.skipped != {} for part in parts] == [True, False, True]
    skipped = sealed(source, parts).skipped
    assert skipped.count == 45
    assert skipped.first == [*source.skipped[0], *source.skipped[2][:5]]


def test_a_source_that_changed_while_it_was_read_cannot_be_sealed(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("1,2,3")
    source = Given(np.ones((3, 3)), splits=[0, 1, 2])
    source.files = (file,)
    before = {"00000/rows.csv": hashlib.sha256(file.read_bytes()).hexdigest()}
    parts = parts_of(source, tmp_path)
    assert sealed(source, parts, {"source": before}).splits["train"] == 1
    file.write_text("1,2,4")
    with pytest.raises(
        DataError, match="the source's content is now .* as when the pipeline started"
    ):
        sealed(source, parts, {"source": before})


class Endless(Synthetic):
    """Ends with an error in the midst of its third shard, or does what the test wants there."""

    def iter_tables(self, shard):
        tables = super().iter_tables(shard)
        yield next(tables)
        if shard == 2:
            raise self.error
        yield from tables


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("row 7 is bad")])
def test_an_interrupted_part_leaves_whole_shards_only_and_is_written_again(tmp_path, error):
    source = Endless(num_shards=4, rows_per_shard=100, features=5)
    source.error = error
    whole = {}
    with pytest.raises(type(error)):
        whole.update(
            (r.file, r.blake3) for r, _ in build_shards(source, range(4), SHARES, tmp_path)
        )
    assert {path.name for path in tmp_path.iterdir()} >= whole.keys()
    for path in tmp_path.iterdir():
        with safe_open(path, framework="np") as file:
            assert len(file.get_tensor("ids")) == 100
    good = Synthetic(num_shards=4, rows_per_shard=100, features=5)
    again = {r.file: r.blake3 for r, _ in build_shards(good, range(4), SHARES, tmp_path)}
    assert again.items() >= whole.items()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(again)


def test_what_a_killed_job_left_of_its_shards_is_swept_and_nothing_else(tmp_path):
    source = Synthetic(num_shards=4, rows_per_shard=100, features=5)
    mine, other = ".shard-00001.safetensors.123.tmp", ".shard-00003.safetensors.123.tmp"
    for name in (mine, other):
        (tmp_path / name).write_bytes(b"half")
    list(build_shards(source, range(2), SHARES, tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert mine not in names
    assert other in names, "another job may be writing it"
