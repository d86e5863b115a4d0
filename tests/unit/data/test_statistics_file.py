"""Statistics of many features lie in a file beside the shards, to the bit, and few stay in the manifest."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from safetensors.numpy import load_file

from shardline.config.plans import DatasetPlan
from shardline.core.files import read_json, write_json
from shardline.data import statistics_file
from shardline.data.datamodule import Normalizer, shift_and_scale
from shardline.data.dataset import Dataset, read_manifest
from shardline.data.statistics_file import MOST_INSIDE, read_statistics, set_aside
from shardline.errors import DataError
from shardline.pipeline.dataset_jobs import build_shards, seal_dataset
from shardline.records.datasets import DatasetStatistics, Manifest, Summary
from shardline.results.accept.candidates import find_candidate
from shardline.results.accept.take import accept_dataset
from shardline.results.repair import repair_dataset
from shardline.results.verify import verify_dataset
from tests.support.columns import Given, bare_manifest, manifest_of
from tests.support.fake_project import LOCK, FakeProject
from tests.support.tampering import fields_changed

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)


class Photos:
    """A sealed dataset of six real images, as the pipeline's jobs make it."""

    def __init__(self, fake: FakeProject, size: int) -> None:
        random = np.random.default_rng(1)
        for number in range(6):
            path = fake.workspace.path / f"photos/{'ab'[number % 2]}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (size, size, 3), np.uint8)).save(path)
        fake.config["datasets"]["table"] = {
            "source": {"type": "image_folder", "files": ["photos"], "size": [size, size]},
            "shards": 2,
            "splits": {"train": 1.0, "validation": 1e-12, "test": 1e-12},
        }
        fake.config["runtime"] = {"strict_env": "warn"}
        self.fake, self.project = fake, fake.load()
        self.dataset: DatasetPlan = fake.run("flat").dataset
        self.folder = self.project.store / "datasets" / self.dataset.id
        self.plan = self.project.part(datasets=[self.dataset.id])
        for part in self.dataset.parts:
            build_shards(self.plan, part, str(self.folder / f"parts/{part}.json"))
        self.seal()

    @property
    def file(self) -> Path:
        return self.folder / "statistics.safetensors"

    def seal(self) -> None:
        dataset = self.dataset
        seal_dataset(self.plan, str(dataset.manifest), str(dataset.provenance))

    def problems(self, *, deep: bool = False) -> list[str]:
        return verify_dataset(self.project, self.dataset.id, deep=deep).problems


@pytest.fixture
def photos(fake: FakeProject, monkeypatch: pytest.MonkeyPatch) -> Photos:
    """Small photos that are many features all the same."""
    monkeypatch.setattr(statistics_file, "MOST_INSIDE", 100)
    return Photos(fake, 8)


def test_a_manifest_of_photos_is_small_and_they_are_normalised_as_by_statistics_within(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = Photos(fake, 224)
    manifest = photos.dataset.manifest
    assert manifest.stat().st_size < 10_000
    statistics = read_json(manifest, remedy="")["statistics"]
    assert statistics["summary"]["features"] == {
        "count": 6, "features": 150528, "min": 0, "max": 255, "mean": pytest.approx(127.5, abs=1),
        "std": pytest.approx(73.9, abs=1),
    }  # fmt: skip
    assert sum(statistics["class_counts"]["train"]) == 6
    assert load_file(photos.file)["features.mean"].shape == (150528,)
    dataset = Dataset(manifest, photos.folder, verify="off")
    monkeypatch.setattr(statistics_file, "MOST_INSIDE", 1e9)
    photos.seal()
    assert manifest.stat().st_size > 5_000_000
    within = Dataset(manifest, photos.folder, verify="off")
    assert not within.manifest.statistics.file
    for mode in ("standard", "global"):
        mine = shift_and_scale(dataset.statistics["features"], mode)
        expected = shift_and_scale(within.statistics["features"], mode)
        assert [of.tobytes() for of in mine] == [of.tobytes() for of in expected]
        a, b = (Normalizer(of, mode, torch.float32).constants for of in (dataset, within))
        assert a is not None
        assert b is not None
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_dataset_of_photos_is_verified_with_its_statistics(photos: Photos) -> None:
    assert photos.problems(deep=True) == []
    summary = photos.dataset.manifest.read_bytes()
    content = bytearray(photos.file.read_bytes())
    content[-1] ^= 1
    photos.file.write_bytes(content)
    (problem,) = photos.problems(deep=True)
    assert problem.startswith(f"{photos.file} has BLAKE3 digest ")
    assert problem.endswith("; run `shardline verify --repair table`, then `snakemake`")
    repaired = repair_dataset(photos.project, verify_dataset(photos.project, photos.dataset.id))
    assert repaired == [], "sealed again from the lists of its parts"
    photos.seal()
    assert photos.problems(deep=True) == []
    assert photos.dataset.manifest.read_bytes() == summary


@pytest.mark.parametrize("damage", ["missing", "changed", "short"])
def test_statistics_that_are_missing_or_damaged_are_an_error_with_the_remedy(
    photos: Photos, damage: str
) -> None:
    content = photos.file.read_bytes()
    photos.file.unlink()
    if damage != "missing":
        photos.file.write_bytes(content[:-8] + (b"12345678" if damage == "changed" else b""))
    dataset = Dataset(photos.dataset.manifest, photos.folder, verify="off")
    assert Normalizer(dataset, "none", torch.float32).constants is None, "needs no statistics"
    with pytest.raises(DataError) as error:
        Normalizer(dataset, "standard", torch.float32)
    assert str(error.value).startswith(f"{photos.file} ")
    assert f"run `shardline verify --repair {photos.dataset.id}`" in str(error.value)


def test_an_altered_manifest_of_photos_is_a_problem_and_no_crash(photos: Photos) -> None:
    document = read_json(photos.dataset.manifest, remedy="")
    whole = document["statistics"]
    for altered in fields_changed(whole):
        write_json(photos.dataset.manifest, {**document, "statistics": altered})
        assert photos.problems(deep=True)


def test_an_accepted_dataset_has_its_statistics(photos: Photos) -> None:
    photos.fake.workspace.write("my.lock", LOCK.format(torch="2.12.0").replace("2.4.6", "2.4.7"))
    project, dataset = photos.fake.load(), photos.fake.run("flat").dataset
    assert dataset.id != photos.dataset.id
    accept_dataset(project, find_candidate(dataset), reason="the same bits")
    assert verify_dataset(project, dataset.id, deep=True).problems == []
    assert read_statistics(read_manifest(dataset.manifest), project.layout.shards(dataset.id))


def manifest_with(columns: dict[str, Summary]) -> Manifest:
    return bare_manifest(statistics=DatasetStatistics(columns=columns, class_counts={}))


@settings(max_examples=60, deadline=None, print_blob=True)
@given(numbers=st.lists(st.tuples(arrays(np.float64, st.integers(1, 9), elements=FINITE),
                                  st.integers(0, 9)), min_size=1, max_size=3))  # fmt: skip
def test_what_is_set_aside_is_read_with_its_bits(numbers: list[tuple[np.ndarray, int]]) -> None:
    """However many features a column has; a column without a row has no statistics."""
    columns: dict[str, Summary] = {}
    for place, (values, rows) in enumerate(numbers):
        of = [MOST_INSIDE * values.tolist() if rows else []] * 4
        keys = ("mean", "std", "min", "max")
        columns[f"c{place}.mean"] = Summary(count=rows, **dict(zip(keys, of, strict=True)))
    manifest = manifest_with(columns)
    size = sum(len(of.mean) for of in columns.values())
    with TemporaryDirectory() as name:
        written = set_aside(manifest, Path(name))
        assert (written == manifest) == (size <= MOST_INSIDE)
        assert any(Path(name).iterdir()) == (size > MOST_INSIDE)
        read = read_statistics(written, Path(name))
    assert [*read] == [*columns]
    for column, of in columns.items():
        assert read[column].count == of.count
        for key in ("mean", "std", "min", "max"):
            assert (
                getattr(read[column], key).tobytes() == np.array(getattr(of, key), float).tobytes()
            )


# --- a table as named columns ---------------------------------------------------------------------


def sealed(columns: dict[str, str], rows: list[dict[str, Any]], folder: Path) -> Dataset:
    source = Given(columns, [[(0, row) for row in rows]], classes=("a", "b"))
    manifest_of(source, folder)
    return Dataset(folder / "manifest.json", folder, verify="off")


def test_named_columns_of_features_and_labels_are_normalised_as_a_table_is(tmp_path: Path) -> None:
    features = np.random.default_rng(2).normal(3, 2, (50, 2, 3)).astype(np.float32)
    rows = [{"features": row, "labels": place % 2} for place, row in enumerate(features)]
    dataset = sealed({"features": "float32[2,3]", "labels": "int64"}, rows, tmp_path)
    assert dataset.statistics["features"].count == 50
    given, labels = torch.from_numpy(features), torch.arange(50)
    normalize = Normalizer(dataset, "standard", torch.float32)
    expected = torch.from_numpy((features - features.mean(0)) / features.std(0))
    as_tuple = normalize.batch((given, labels))
    as_dict = normalize.batch({"features": given, "labels": labels})
    for features_BD, labels_B in (as_tuple, as_dict.values()):
        torch.testing.assert_close(features_BD, expected, atol=1e-5, rtol=0)
        assert labels_B is labels


@pytest.mark.parametrize(
    "columns",
    [
        {"features": "float32[2]?", "labels": "int64"},
        {"features": "float32[*]", "labels": "int64"},
        {"features": "float32[2]", "labels": "int64", "weight": "float32"},
    ],
)
def test_other_named_columns_stay_as_they_are(columns: dict[str, str], tmp_path: Path) -> None:
    row = {"features": np.ones(2, np.float32), "labels": 1, "weight": 2.0}
    dataset = sealed(columns, [{name: row[name] for name in columns}] * 3, tmp_path)
    assert Normalizer(dataset, "standard", torch.float32).constants is None
