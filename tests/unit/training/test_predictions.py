"""Predictions: each row once and in order, whoever computes it and however often that is killed."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shardline.core.world import World
from shardline.data.dataset import Dataset, read_manifest
from shardline.data.prediction_file import write_predictions
from shardline.data.prediction_parts import count_parts, missing_parts, part_file, rows_of_parts
from shardline.data.sources.from_files import ids_in_file, text_id
from shardline.errors import ConfigError, DataError
from shardline.training.predict import predict
from tests.support.evaluated_model import Rows, sealed_model

BATCH = 3


class Extra(pl.LightningModule):
    """A model with outputs of its own."""

    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def predict_step(self, batch, batch_idx):
        features = batch[0]
        return {"double": features * 2 * self.weight, "is_large": features[:, 0] > 4}


class Summed(Extra):
    """Gives one number for a batch."""

    def predict_step(self, batch, batch_idx):
        return batch[0].sum()


class Broken(Extra):
    """Gives NaN for rows whose first feature is large."""

    predict_step = pl.LightningModule.predict_step

    def forward(self, features):
        bad = features[:, :1] > 1
        return torch.where(bad, torch.nan, features[:, :1]).expand(-1, 3) * self.weight


@dataclass
class Sealed:
    """A sealed model and dataset, and what predicts with them in this process."""

    given: dict
    model: pl.LightningModule
    split: str = "test"

    @property
    def manifest(self):
        return read_manifest(self.given["datasets"][0].manifest)

    @property
    def num_rows(self):
        return self.manifest.splits[self.split]

    def ids(self):
        """Return the row ids of the split, in order."""
        place = self.given["datasets"][0]
        dataset = Dataset(place.manifest, place.shards)
        return dataset.shards.ids(dataset.shards.pieces(self.split)).tolist()

    def normal(self, source):
        """Return the normalised features of these rows, and their labels, from the source."""
        rows = [int(np.flatnonzero(source.ids == one)[0]) for one in self.ids()]
        statistics = self.manifest.statistics.features
        mean, std = np.array(statistics.mean), np.array(statistics.std)
        return (source.features[rows] - mean) / std, source.labels[rows]

    def world(self, folder, rank, ranks, parts):
        place = World(
            rank=rank, local_rank=rank, world_size=ranks, local_world_size=ranks, master_addr="",
            master_port=1, launcher="none",
        )  # fmt: skip
        spec = self.given["spec"]
        spec = structs.replace(spec, settings=structs.replace(spec.settings, accelerator="cpu"))
        return predict(
            spec, model_file=self.given["model_file"], trained_on=self.given["datasets"],
            rows=self.given["datasets"][0], split=self.split, folder=folder, parts=parts, world=place,
        )  # fmt: skip

    def compute(self, folder, ranks=1, stop=None):
        """Compute the missing parts, each rank at most `stop` of them."""
        folder.mkdir(exist_ok=True)
        missing = missing_parts(folder, self.num_rows, BATCH)
        for rank in range(ranks):
            for _ in islice(self.world(folder, rank, ranks, missing), stop):
                pass

    def write(self, folder):
        parts = count_parts(self.num_rows, BATCH)
        classes = self.manifest.schema.classes
        files = [part_file(folder, part) for part in range(parts)]
        write_predictions(
            folder / "p.parquet", files, classes=classes, names=(), about={"run": "r"}
        )
        return folder / "p.parquet"


def sealed(folder, model_class=None, **options):
    folder.mkdir(exist_ok=True)
    source = Rows(num_shards=4, shape=(2,), dtype="float32", **options)
    kinds = {"model_class": model_class} if model_class else {}
    return Sealed(*sealed_model(folder, source, normalize="standard", batch=BATCH, **kinds))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return sealed(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def whole(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    classifier.compute(folder)
    return classifier.write(folder)


def test_rows_are_there_once_in_their_order_with_class_and_probabilities(classifier, whole):
    table, ids = pq.read_table(whole), classifier.ids()
    assert table["id"].to_numpy().tolist() == ids
    assert pq.ParquetFile(whole).num_row_groups == count_parts(len(ids), BATCH) > 2
    assert json.loads(table.schema.metadata[b"shardline"]) == {"run": "r"}
    normal, labels = classifier.normal(Rows(num_shards=4, shape=(2,), dtype="float32"))
    classes = classifier.manifest.schema.classes
    assert table["label"].to_pylist() == [classes[label] for label in labels]
    with torch.inference_mode():
        expected = classifier.model(torch.tensor(normal).float()).softmax(1).numpy()
    shares = np.array(table["probabilities"].to_pylist())
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    assert table["prediction"].to_pylist() == [classes[one] for one in shares.argmax(1)]
    np.testing.assert_allclose(table["probability"].to_numpy(), shares.max(1))


@settings(max_examples=8, deadline=None)
@given(
    kills=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=3),
    ranks=st.integers(1, 3),
    damage=st.sampled_from((None, b"", b"\xff" * 40)),
)
def test_a_killed_prediction_resumes_on_any_number_of_ranks_with_the_same_bytes(
    classifier, whole, tmp_path_factory, kills, ranks, damage
):
    folder = tmp_path_factory.mktemp("killed")
    for number, stop in kills:
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        classifier.compute(folder, number, stop)
        assert before.items() <= {p: p.stat().st_mtime_ns for p in folder.iterdir()}.items()
    first = part_file(folder, 0)
    if damage is not None and first.exists():
        first.write_bytes(first.read_bytes()[:50] + damage)
    classifier.compute(folder, ranks)
    assert classifier.write(folder).read_bytes() == whole.read_bytes()


@given(num_rows=st.integers(1, 5000), batch=st.integers(1, 400))
def test_parts_hold_all_rows(num_rows, batch):
    parts = list(rows_of_parts(num_rows, batch))
    assert sum(parts) == num_rows
    assert min(parts) > 0
    assert len(parts) == count_parts(num_rows, batch)


def test_a_number_is_predicted_and_outputs_of_its_own_become_columns(tmp_path):
    number = sealed(tmp_path / "number", task="regression")
    number.compute(tmp_path / "a")
    table = pq.read_table(number.write(tmp_path / "a"))
    assert [str(field.type) for field in table.schema] == ["int64", "float", "float"]
    assert table.column_names == ["id", "label", "prediction"]

    own = sealed(tmp_path / "own", Extra)
    own.compute(tmp_path / "b")
    table = pq.read_table(own.write(tmp_path / "b"))
    assert table.column_names == ["id", "label", "double", "is_large"]
    double = np.array(table["double"].to_pylist())
    assert double.shape == (own.num_rows, 2)
    assert table["is_large"].to_pylist() == (double[:, 0] / 2 > 4).tolist()


def test_outputs_that_are_no_rows_are_named(tmp_path):
    summed = sealed(tmp_path / "summed", Summed)
    with pytest.raises(
        DataError,
        match=r"predict_step returned a tensor \[\] as prediction, expected a tensor \[\d,",
    ):
        summed.compute(tmp_path / "a")
    broken = sealed(tmp_path / "broken", Broken)
    normal, _ = broken.normal(Rows(num_shards=4, shape=(2,), dtype="float32"))
    first = broken.ids()[int(np.flatnonzero(normal[:, 0] > 1)[0])]
    with pytest.raises(
        DataError, match=f"NaN or infinite outputs for row id {first}, expected finite"
    ):
        broken.compute(tmp_path / "b")


@given(names=st.lists(st.text(max_size=9), min_size=1, max_size=5, unique=True), data=st.data())
def test_the_file_of_a_row_is_known_by_its_id(names, data):
    from shardline.data.prediction_file import _Bases

    asked = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 1 << 40))))
    ids = [int(ids_in_file(name, np.array([position]))[0]) for name, position in asked]
    found = _Bases(names).files_of(np.array(ids, dtype=np.int64)).to_pylist()
    assert found == [name for name, _ in asked]
    assert _Bases(["a"]).files_of(np.array([text_id("a") - 1])).to_pylist() == [None]


# --- what the config may ask for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"run": "fla", "dataset": "table"}, r"predictions.p.run=fla is not a run of .*flat"),
        ({"run": "flat", "dataset": "tables"}, r"predictions.p.dataset=tables is not in datasets; .*table"),
        ({"run": "flat"}, "predictions.p has neither of dataset and files; give one of them"),
        ({"run": "flat", "files": ["data/a.csv"]}, "predictions.p.files: dataset table is of type synthetic, which"),
        ({"run": "net", "files": ["data/z*"]}, "predictions.p.files: data/z. matches no file; check the path"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_told_when_the_config_is_read(fake, entry, said):
    fake.config["predictions"] = {"p": entry}
    with pytest.raises(ConfigError, match=said):
        fake.load()


@pytest.mark.parametrize("model", ["gpt", "unet", "hf:AutoModelForCausalLM"])
def test_a_model_of_tokens_or_pixels_is_refused_before_it_is_trained(fake, model):
    fake.rows[0]["model"] = model
    fake.config["predictions"] = {"p": {"run": fake.rows[0]["name"], "dataset": "table"}}
    with pytest.raises(
        ConfigError, match=f"has model={model}, which scores tokens or pixels, expected a model"
    ):
        fake.load()


def test_a_prediction_counts_by_run_rows_and_split_and_makes_nothing_else_stale(fake):
    def ids():
        project = fake.load()
        return {name: one.id for one in project.predictions.values() for name in one.names}, project

    before = fake.load()
    entries = {
        "held": {"run": "net", "dataset": "rows"},
        "same": {"run": "net", "dataset": "rows", "split": "test"},
        "seen": {"run": "net", "dataset": "rows", "split": "train"},
        "new": {"run": "net", "files": ["data/a.csv"]},
        "more": {"run": "net", "files": ["data/*.csv"]},
    }
    fake.config["predictions"] = entries
    first, project = ids()
    assert len(set(first.values())) == 4
    assert first["held"] == first["same"]
    assert project.datasets.keys() == before.datasets.keys()
    assert project.runs.keys() == before.runs.keys()
    assert project.report == before.report
    assert len(project.predicted) == 2

    fake.workspace.write("data/b.csv", "5,6\n")  # which the run's dataset reads as well
    second, _ = ids()
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    fake.workspace.write("data/b.csv", "3,4\n")
    assert ids()[0] == first


def test_gc_lists_predictions_that_the_config_does_not_name(fake):
    from shardline.results.gc import find_garbage

    fake.config["predictions"] = {"held": {"run": "net", "dataset": "rows"}}
    project = fake.seal_all()
    (one,) = project.predictions.values()
    old = one.file.with_name("0123456789ab.parquet")
    for path in (one.file, one.record, old):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert [item.path for item in find_garbage(project, fake.config["datasets"])] == [Path(old)]
