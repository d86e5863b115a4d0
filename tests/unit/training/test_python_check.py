"""The check of a model on a data module: before and after its data are prepared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch.nn import functional

from shardline.config.resolved import RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.training.rank_task import CheckedDataset, ModelResult
from tests.support import python_data
from tests.support.python_data import Module
from tests.support.rank_tasks import checked


class Prepared(Module):
    """Has a `prepare_data`, which a check must not call."""

    def prepare_data(self) -> None:
        raise AssertionError


class Unfinished(Prepared):
    """Reads what only its `prepare_data` writes."""

    def setup(self, stage: str | None = None) -> None:
        raise FileNotFoundError("cache.bin")


class Net(LightningModule):
    """Takes images as the module's transform returns them."""

    def __init__(self, sample_columns: Any, num_classes: int) -> None:
        super().__init__()
        assert sample_columns == {"image": "float32[3,4,6]", "labels": "int64"}
        self.layer = torch.nn.Linear(72, num_classes)

    def loss(self, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(self.layer(batch["image"].flatten(1)), batch["labels"])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", self.loss(batch))


class Unpacks(Net):
    """Takes what a torch `DataLoader` gives."""

    def loss(self, batch: Any) -> torch.Tensor:
        image, labels = batch
        return functional.cross_entropy(self.layer(image.flatten(1)), labels)


def check(
    folder: Path, path: str, files: Sequence[Path] = (), model: str = "Net", **data: Any
) -> ModelResult:
    dataset = CheckedDataset(
        id="0123456789ab", name="rows", manifest=folder / "manifest.json", shards=folder / "shards",
        source_class=path, source={"type": path, "options": {}}, num_shards=2, files=list(files),
    )  # fmt: skip
    given = {"global_batch": 4, "data": data}
    settings = as_type(fill(given, schema_of(RunSettings)), RunSettings)
    run = RunSpec(run="ab", name="net", model_class=f"{__name__}:{model}", settings=settings)
    return checked(run, dataset, folder, has_test_step=True)


def test_a_module_whose_files_are_there_is_checked_before_it_is_prepared(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(b"")
    found = check(tmp_path, f"{__name__}:Prepared", [file])
    assert (found.problems, found.not_checked) == ([], [])
    found = check(tmp_path, f"{__name__}:Unfinished", [file])
    assert [sentence.partition(": ")[2] for sentence in found.not_checked] == [
        "the job prepare_data of dataset rows has not run yet"
    ]


def test_a_model_that_unpacks_its_batch_is_told_how(tmp_path: Path) -> None:
    (problem,) = check(tmp_path, f"{python_data.__name__}:Module", model="Unpacks").problems
    assert "or, if the model unpacks its batch, set data.collate to tuple: " in problem
    found = check(tmp_path, f"{python_data.__name__}:Module", model="Unpacks", collate="tuple")
    assert (found.problems, found.not_checked) == ([], [])


@pytest.mark.parametrize("path", [f"{python_data.__name__}:Module", f"{__name__}:Prepared"])
def test_a_model_is_checked_on_transformed_rows_once_they_are_prepared(
    path: str, tmp_path: Path
) -> None:
    if path.endswith("Prepared"):
        found = check(tmp_path, path)
        assert found.not_checked == [
            f"model={__name__}:Net was not checked: the job prepare_data of dataset rows has not run yet"
        ]
        (tmp_path / "shards").mkdir()
        (tmp_path / "shards" / "prepared.json").write_text("{}")
    found = check(tmp_path, path)
    assert (found.problems, found.not_checked) == ([], [])
    assert found.inferred["rows"]["rows"] == {"train": 20, "validation": 4, "test": 24}
    assert found.inferred["rows"]["left out of train"].startswith("transform (image); applied")
