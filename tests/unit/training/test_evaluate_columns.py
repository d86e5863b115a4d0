"""A run on other columns than a table's is evaluated by what its model logs, and each held-out row counts once."""

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from safetensors.torch import save_file

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.errors import ConfigError, DataError
from shardline.models import Classifier
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training.evaluate import evaluate
from tests.support.columns import manifest_of


class Numbers(Source):
    """Rows of one to five numbers: row i has those from i on."""

    schema = Schema(columns={"numbers": "float32[*]", "scale": "float32"})

    def iter_tables(self, shard: int) -> Any:
        rows = np.arange(100)
        numbers = [row + np.arange(row % 5 + 1, dtype=np.float32) for row in rows]
        columns = {"numbers": numbers, "scale": rows.astype(np.float32)}
        yield Table(ids=rows, columns=columns, splits=rows % 2 * 2)


class Validated(pl.LightningModule):
    """Logs the mean of all numbers times a weight."""

    def __init__(self, columns: dict[str, str]) -> None:
        super().__init__()
        assert columns == {"numbers": "float32[*]", "scale": "float32"}
        self.weight = torch.nn.Parameter(torch.ones(()))

    def mean(self, name: str, batch: Any) -> None:
        total = (self.weight * batch["numbers"]).sum() / batch["numbers.lengths"].sum()
        self.log(name, total, batch_size=int(batch["numbers.lengths"].sum()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean("val_loss", batch)


class Tested(Validated):
    """Logs under a name of tests."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.mean("test_loss", batch)


class Silent(Validated):
    """Logs another name than the one that chose the weights."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean("perplexity", batch)


class Photos(Source):
    """PNG files, red ones and blue ones in turn; each fifth has the other one's label."""

    schema = Schema(columns={"image": "bytes", "labels": "int64"}, classes=("red", "blue"))

    def iter_tables(self, shard: int) -> Any:
        rows = np.arange(60)
        pixels = np.zeros((60, 6, 8, 3), np.uint8)
        pixels[rows, :, :, rows % 2 * 2] = 250
        labels = np.where(rows % 5 == 0, 1 - rows % 2, rows % 2)
        columns = {"image": list(map(png, pixels)), "labels": labels}
        yield Table(ids=rows, columns=columns, splits=rows // 30 * 2)


def png(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


class Redness(Classifier):
    """Compares red with blue."""

    column = "image"

    def __init__(self, columns: dict[str, str]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.weight * images.float().mean(dim=(1, 2))[:, [0, 2]]


def test_a_classifier_of_a_column_has_the_metrics_and_samples_of_a_tables(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path, Redness, Photos(num_shards=1), data={"eval_transform": {"type": "decode"}}
    )
    assert (found["task"], found["num_samples"]) == ("classification", 30)
    assert found["headline"]["metric"] == "accuracy"
    assert found["headline"]["value"] == pytest.approx(0.8)
    assert len(found["samples"]["hardest"]) == 6
    for sample in found["samples"]["typical"]:
        content = base64.b64decode(sample["image"].partition(",")[2])
        shown = np.asarray(Image.open(io.BytesIO(content)))
        assert shown.shape == (6, 8, 3)
        assert sample["predicted"] == ("red" if shown[0, 0, 0] else "blue")


class Plain(pl.LightningModule):
    """Gets the images, and unpacks its batches, as models for a torch `DataLoader` do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8, "as the DataLoader has them"
        return self.weight * images.float().mean(dim=(1, 2))[:, [0, 2]]

    def test_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        self.log("test_hits", (self(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("has_test_step", [False, True])
def test_a_model_for_tuples_is_evaluated_on_columns(tmp_path: Path, has_test_step: bool) -> None:
    data = {"eval_transform": {"type": "decode"}, "collate": "tuple"}
    headline = {"metric": "test_hits" if has_test_step else "accuracy", "mode": "max"}
    found = evaluated(
        tmp_path, Plain, Photos(num_shards=1), has_test_step=has_test_step, data=data,
        evaluation={"headline": headline},
    )  # fmt: skip
    assert (found["headline"]["metric"], found["num_samples"]) == (headline["metric"], 30)
    assert found["headline"]["value"] == pytest.approx(0.8)


def evaluated(
    folder: Path,
    model: type[pl.LightningModule],
    source: Source | None = None,
    *,
    has_test_step: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    manifest_of(source or Numbers(num_shards=1), folder)
    save_file({"weight": torch.tensor(2.0)}, folder / "model.safetensors")
    spec = RunSpec(
        run="one", model_class=f"{__name__}:{model.__name__}",
        settings=msgspec.convert({"global_batch": 7, **settings}, RunSettings),
    )  # fmt: skip
    found = evaluate(
        spec,
        model_file=folder / "model.safetensors",
        datasets=[DatasetPlace(manifest=folder / "manifest.json", shards=folder)],
        has_test_step=has_test_step,
    )
    return encode(found)


@pytest.mark.parametrize(("model", "metric"), [(Validated, "val_loss"), (Tested, "test_loss")])
def test_what_a_model_logs_is_its_evaluation(
    tmp_path: Path, model: type[pl.LightningModule], metric: str
) -> None:
    found = evaluated(tmp_path, model)
    numbers = np.concatenate([row + np.arange(row % 5 + 1) for row in range(1, 100, 2)])
    value = found["metrics"].pop(metric)
    assert value == pytest.approx(2 * numbers.mean(), rel=1e-5)
    assert found["headline"] == {"metric": metric, "value": value, "mode": "min"}
    assert (found["num_samples"], found["task"], found["metrics"]) == (50, "none", {})


def test_a_model_that_does_not_log_the_monitor_is_refused(tmp_path: Path) -> None:
    message = r'run "one": .* validation_step logs perplexity, expected val_loss or test_loss .checkpoint\.monitor'
    with pytest.raises(ConfigError, match=message):
        evaluated(tmp_path, Silent)


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    manifest = manifest_of(Numbers(num_shards=1), tmp_path)
    assert manifest.splits["validation"] == 0
    world = World(
        rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="localhost",
        master_port=0, launcher="none",
    )  # fmt: skip
    place = DatasetPlace(manifest=tmp_path / "manifest.json", shards=tmp_path)
    with pytest.raises(DataError, match="the validation split has no rows"):
        ShardDataModule(RunSettings(global_batch=10), [place], world)
