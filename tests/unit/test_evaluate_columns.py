"""A run on other columns than a table's is evaluated by what its model logs, and each held-out row counts once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from safetensors.torch import save_file

from shardline.config.run_spec import DatasetPlace, RunSpec
from shardline.config.settings.run import RunSettings
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.errors import ConfigError, DataError
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


def evaluated(folder: Path, model: type[pl.LightningModule]) -> dict[str, Any]:
    write_json(folder / "manifest.json", manifest_of(Numbers(num_shards=1), folder))
    save_file({"weight": torch.tensor(2.0)}, folder / "model.safetensors")
    spec = RunSpec(
        run="one", model_class=f"{__name__}:{model.__name__}",
        settings=RunSettings(global_batch=7),
    )  # fmt: skip
    return evaluate(
        spec,
        model_file=folder / "model.safetensors",
        datasets=[DatasetPlace(manifest=folder / "manifest.json", shards=folder)],
    )


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
    message = r'run "one": .* validation_step logs perplexity, expected val_loss or test_loss, by checkpoint\.monitor'
    with pytest.raises(ConfigError, match=message):
        evaluated(tmp_path, Silent)


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    manifest = manifest_of(Numbers(num_shards=1), tmp_path)
    assert manifest["splits"]["validation"] == 0
    world = World(
        rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="localhost",
        master_port=0, launcher="none",
    )  # fmt: skip
    place = DatasetPlace(manifest=tmp_path / "manifest.json", shards=tmp_path)
    with pytest.raises(DataError, match="its validation split has no rows"):
        ShardDataModule(RunSettings(global_batch=10), [place], world)
