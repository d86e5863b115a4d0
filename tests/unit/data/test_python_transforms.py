"""Transforms of torch datasets: left out while shards are built, and applied when rows are read."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET, structs
from torch.utils.data import ConcatDataset, Subset

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, RunSettings
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.data.build import build_shards, describe_part, make_source, seal
from shardline.data.columns import features_of
from shardline.data.datamodule import Normalizer
from shardline.data.python.applied import OwnTransforms, seed_of
from shardline.data.python.samples import places_of, stored
from shardline.data.python.seeds import kept_generators
from shardline.data.python.source import PythonSource
from shardline.data.run_batches import RunBatches
from shardline.data.sample_columns import sample_columns
from shardline.data.transforms.repeat_check import check_samples
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.data.workers import make_pool
from shardline.errors import ConfigError, DataError
from shardline.records.base import encode
from tests.support import python_data
from tests.support.python_data import Pictures, Plus, Scale, Table, picture

HERE, SUPPORT = __name__, python_data.__name__
WORLD = World(
    rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="", master_port=0, launcher="none"
)  # fmt: skip


class Albumentations:
    """Has a generator of its own, takes keywords, and returns a dict."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, **given: Any) -> dict[str, Any]:
        assert all(isinstance(value, np.ndarray) for value in given.values())
        return {name: value + self.generator.random() for name, value in given.items()}


class OnSample:
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(sample["labels"], int)
        return {**sample, "image": sample["image"] * torch.rand(()).item(), "size": 24}


class Both:
    def __call__(self, image: Any, label: int) -> tuple[Any, int]:
        return Plus("numpy")(image), label + 10


def pictures(by: str = "torch") -> Pictures:
    return Pictures(Plus(by), target_transform=lambda label: label + random.randint(0, 1000))


def views() -> python_data.Views:
    return python_data.Views(Plus())


def keywords() -> python_data.Keywords:
    return python_data.Keywords(Albumentations())


def whole_sample() -> python_data.WholeSample:
    return python_data.WholeSample(OnSample())


def joint() -> python_data.Joint:
    return python_data.Joint(Both())


def nested() -> Any:
    return ConcatDataset([Subset(Pictures(Plus()), range(3, 6)), Pictures(Scale()), Pictures()])


def changed() -> python_data.Changed:
    return python_data.Changed(lambda features: features + 1)


def rotated() -> Table:
    class Rotated(Table):
        transform = staticmethod(lambda features: features.flip(0))

    return Rotated()


def source(name: str, module: str = HERE, **options: Any) -> PythonSource:
    found = make_source(f"{module}:{name}", {"options": options}, num_shards=2, files=[])
    assert isinstance(found, PythonSource)
    return found


def stored_rows(found: PythonSource) -> dict[int, dict[str, Any]]:
    rows = [row for shard in range(found.num_shards) for row in found.iter_rows(shard)]
    return {row.pop("ids"): row for row in rows}


@pytest.mark.parametrize(
    "name", ["pictures", "views", "keywords", "whole_sample", "joint", "nested"]
)
def test_a_sample_is_that_of_the_dataset_with_the_samples_own_seed(name: str) -> None:
    found = source(name)
    original = globals()[name]()
    assert found.samples is not UNSET
    own = OwnTransforms(given=found._given, form=found.samples, split="train", has_chance=True)
    steps = own.steps(found.reader)
    for row, sample in stored_rows(found).items():
        before = torch.get_rng_state()
        result = steps((3, 5, 1, row), sample)
        assert torch.equal(before, torch.get_rng_state())
        if name == "keywords":
            original.transform.set_random_seed(seed_of((3, 5, 1, row)) % 2**32)
        with kept_generators(seed_of((3, 5, 1, row))):
            wanted = original[row]
        expected = {place: stored(of) for place, of, is_column in places_of(wanted) if is_column}
        assert len(result) == len(expected)
        for value, other in zip(result.values(), expected.values(), strict=True):
            np.testing.assert_array_equal(value, other)


def test_images_are_stored_once_without_their_transform() -> None:
    for row, sample in stored_rows(source("pictures")).items():
        np.testing.assert_array_equal(sample["image"], np.asarray(picture(row)))
        assert sample["labels"] == row % 3


def test_a_transform_whose_result_is_changed_stays_in_the_build_and_is_named() -> None:
    found = source("changed")
    assert found.samples is UNSET
    assert found.inferred["applied while shards are built"].startswith("Changed.transform")
    assert stored_rows(found)[3]["features"].tolist() == [8.0, 9.0]


def test_a_method_of_the_class_is_no_attribute() -> None:
    assert source("rotated").samples is UNSET


# --- runs ---------------------------------------------------------------------------------------


def sealed(found: PythonSource, folder: Path) -> DatasetPlace:
    folder.mkdir()
    splits = {"train": 0.8, "validation": 0.2, "test": 0.0}
    part = describe_part("d", build_shards(found, range(2), splits, folder), {})
    manifest = seal([part], dataset="d-0123456789ab", source=found, document={})
    write_json(folder / "manifest.json", encode(manifest))
    return DatasetPlace(manifest=folder / "manifest.json", shards=folder, python=found._given)


def run_of(**data: Any) -> RunSettings:
    return RunSettings(global_batch=4, data=Data(workers=0, **data))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> DatasetPlace:
    return sealed(source("Module", SUPPORT), tmp_path_factory.mktemp("built") / "d")


def images(place: DatasetPlace, split: str, epoch: int = 0, **data: Any) -> list[torch.Tensor]:
    batches = RunBatches([place], run_of(**data), verify="off")
    stream = batches.train(WORLD)[0] if split == "train" else batches.held_out(split, batch=4)[0]
    return [image for batch in stream.batches(epoch) for image in batch["image"]]


def test_a_run_gets_transformed_samples_of_each_split(place: DatasetPlace) -> None:
    train = images(place, "train")
    assert {tuple(image.shape) for image in train} == {(3, 4, 6)}
    # chance of its own for each sample and pass, and none in the sample's place
    added = [float(image.min()) for image in train]
    assert len(set(added)) == len(added) == 20
    assert torch.equal(torch.stack(train), torch.stack(images(place, "train")))
    assert not torch.equal(torch.stack(train), torch.stack(images(place, "train", 1)))
    # held out: the same for each visit
    held_out = images(place, "validation")
    assert torch.equal(torch.stack(held_out), torch.stack(images(place, "validation", 1)))
    test = images(place, "test")
    for row, image in enumerate(test):
        assert torch.equal(image, Scale()(picture(row)))


def test_the_runs_own_transform_comes_before(place: DatasetPlace) -> None:
    resized = images(place, "test", eval_transform={"type": "resize", "size": [2, 2]})
    assert {tuple(image.shape) for image in resized} == {(3, 2, 2)}
    with pytest.raises(DataError, match="drop `normalize` from data.transform"):
        images(place, "train", transform="normalize")


def test_a_run_without_the_class_is_rejected(place: DatasetPlace) -> None:
    with pytest.raises(ConfigError, match="has transforms of its own for the train split"):
        images(structs.replace(place, python=None), "train")


def test_models_get_the_columns_after_the_transform(place: DatasetPlace) -> None:
    manifest = RunBatches([place], run_of()).manifest
    expected = {"image": "float32[3,4,6]", "labels": "int64"}
    assert sample_columns(manifest.schema, Data()) == expected
    assert sample_columns(manifest.schema, Data(transform="decode")) is None


def test_a_model_that_unpacks_its_batch_gets_a_tuple(place: DatasetPlace) -> None:
    for split in ("train", "validation", "test"):
        batches = RunBatches([place], run_of(collate="tuple"), verify="off")
        named = RunBatches([place], run_of(), verify="off")
        streams = [
            one.train(WORLD)[0] if split == "train" else one.held_out(split, batch=4)[0]
            for one in (batches, named)
        ]
        for (image, labels), wanted in zip(*(one.batches(0) for one in streams), strict=True):
            assert torch.equal(image, wanted["image"])
            assert torch.equal(labels, wanted["labels"])
    padded = RunBatches([place], run_of(collate="tuple", last_batch="pad"), verify="off")
    image, labels, weights = next(iter(padded.train(WORLD)[0].batches(0)))
    assert weights.shape == labels.shape == image.shape[:1]


class Named:
    """A collation that keeps one column."""

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(self, samples: Any, longest: Any) -> Any:
        return torch.as_tensor(np.stack([one[self.column] for one in samples]))


def test_an_object_of_the_settings_makes_batches(place: DatasetPlace) -> None:
    written = {"type": f"{HERE}:Named", "column": "labels"}
    own, usual = (
        RunBatches([place], run_of(collate=one), verify="off").train(WORLD)[0].batches(0)
        for one in (written, None)
    )
    for labels, wanted in zip(own, usual, strict=True):
        assert torch.equal(labels, wanted["labels"])
    with pytest.raises(ConfigError, match="takes column, but not name; remove name"):
        RunBatches([place], run_of(collate={**written, "name": 1}), verify="off").train(WORLD)


def lists() -> Any:
    return [(torch.arange(1 + row % 2), row) for row in range(8)]


def values() -> Any:
    return [(row, torch.tensor([row, 0.5]), row * 2) for row in range(8)]


def test_a_tuple_has_the_values_in_order_and_no_column_of_varying_length(tmp_path: Path) -> None:
    found = make_source(
        f"{HERE}:values",
        {"columns": {"z": "int64", "a": "float32[2]", "labels": "int64"}},
        num_shards=2,
        files=[],
    )
    one = RunBatches([sealed(found, tmp_path / "d")], run_of(collate="tuple"), verify="off")
    for first, second, third in one.train(WORLD)[0].batches(0):
        assert second.shape == (4, 2)
        assert torch.equal(first.double(), second[:, 0].double())
        assert torch.equal(third, first * 2)
    varying = sealed(source("lists"), tmp_path / "lists")
    batches = RunBatches([varying], run_of(collate="tuple"), verify="off").train(WORLD)[0]
    with pytest.raises(DataError, match="would leave .*features.lengths out of batches"):
        next(iter(batches.batches(0)))


def scaled() -> Any:
    class Scaled(Table):
        def __init__(self) -> None:
            super().__init__()
            self.transform = lambda features: torch.cat([features, features])

        def __getitem__(self, row: int) -> Any:
            return self.transform(self.features(row)), row % 3

    return Scaled()


def test_transformed_features_are_not_normalised_by_statistics_of_the_stored(
    tmp_path: Path,
) -> None:
    one = RunBatches([sealed(source("scaled"), tmp_path / "d")], run_of())
    features = features_of(one.manifest.schema)
    assert features is not None
    assert features.shape == (4,)
    assert Normalizer(one, "standard", torch.float32).constants is None


# --- the shipped adapter --------------------------------------------------------------------------

FLIP = {"type": "callable", "of": f"{SUPPORT}:Plus", "arguments": {"by": "python"}}


def test_any_callable_is_a_transform_with_the_samples_own_chance() -> None:
    samples = [((0, 0, 0, row), {"image": np.asarray(picture(row)), "y": row}) for row in range(8)]
    spec = TransformSpec(written=[FLIP], what="data.transform")
    assert check_samples(spec, samples, str) == 8
    steps = spec.make()
    results = [steps(*one)["image"] for one in samples]
    added = [
        result.min() - np.asarray(picture(row)).min() / 255 for row, result in enumerate(results)
    ]
    assert len({round(float(one), 6) for one in added}) == 8
    made = {"type": "callable", "of": {"type": f"{SUPPORT}:Plus", "by": "python"}}
    steps = TransformSpec(written=made, what="data.transform").make()
    for one, result in zip(samples, results, strict=True):
        assert np.array_equal(steps(*one)["image"], result)
    keyword = {"type": "callable", "of": f"{HERE}:Albumentations", "keyword": "image"}
    spec = TransformSpec(written=keyword, what="data.transform")
    assert check_samples(spec, samples, str) == 8
    held_out = TransformSpec(written=FLIP, what="data.eval_transform", has_chance=False)
    with pytest.raises(ConfigError, match="global generator of random"):
        check_samples(held_out, samples, str)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"of": f"{SUPPORT}:ROWS"}, "is int, expected a callable"),
        (
            {"of": f"{SUPPORT}:Plus", "arguments": {"to": 1}},
            "takes by='torch', but not to; remove to",
        ),
        ({"of": f"{SUPPORT}:joined", "arguments": {"to": 1}}, "is no class, expected no arguments"),
        ({"of": f"{SUPPORT}:Plus", "given": "pil"}, "expected one of image, tensor, array"),
    ],
)
def test_a_wrong_callable_is_named(written: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match="data.transform.type=callable") as raised:
        TransformSpec(written={"type": "callable", **written}, what="data.transform").make()
    assert words in str(raised.value)


def test_threads_do_not_share_global_generators() -> None:
    told: list[str] = []
    spec = TransformSpec(written=FLIP, what="data.transform")
    pool = make_pool("threads:1", spec, where=str, tell=told.append)
    try:
        assert pool.chosen == "processes:1"
        assert "cannot share a process" in told[0]
    finally:
        pool.close()


def test_an_image_file_is_handed_over_as_an_image() -> None:
    sample = {"image": stored(picture(3), as_file=True)}
    assert isinstance(sample["image"], bytes)
    result = TransformSpec(written=FLIP, what="data.transform").make()((0, 0, 0, 1), sample)
    assert result["image"].shape == (3, 4, 6)
