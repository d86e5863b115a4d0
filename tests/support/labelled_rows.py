"""Rows with given labels and weights, sealed as a dataset, and trained and judged in this process."""

from pathlib import Path
from typing import Any

import numpy as np

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.resolved import DatasetPlace, RunSpec, as_type
from shardline.config.settings.run_settings import RunSettings
from shardline.core.files import write_json
from shardline.core.nested import with_values
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.prediction_parts import count_parts, part_file, read_part
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training.evaluate import evaluate
from shardline.training.fit import seal_model, train
from shardline.training.predict import predict
from tests.support.rank_tasks import ALONE, rank_runtime, rank_task

SETTINGS = {
    "devices": 1, "accelerator": "cpu", "global_batch": 16, "trainer.max_epochs": 3,
    "early_stopping.patience": 0, "optim.lr": 0.01, "evaluation.batch": 32,
}  # fmt: skip


class Labelled(Source):
    """Rows in one or more shards, each in the split that is given for it."""

    def __init__(self, schema: Schema, splits: np.ndarray, num_shards: int = 1, **columns: Any):
        super().__init__(num_shards=num_shards)
        self._schema, self._splits, self._columns = schema, splits, columns

    @property
    def schema(self) -> Schema:
        return self._schema

    def iter_tables(self, shard: int) -> Any:
        rows = np.arange(len(self._splits))[shard :: self.num_shards]
        columns = {name: of[rows] for name, of in self._columns.items()}
        yield Table(ids=rows, columns=columns, splits=self._splits[rows])


def in_thirds(rows: int) -> np.ndarray:
    """Return splits of which the first half is trained on, and a quarter each is held out."""
    return np.repeat([0, 1, 2], [rows - 2 * (rows // 4), rows // 4, rows // 4])


def sealed(folder: Path, source: Source) -> DatasetPlace:
    """Write a source's shards and manifest."""
    shards = folder / "shards"
    shards.mkdir(parents=True)
    built = build_shards(source, range(source.num_shards), {}, shards)
    part = describe_part("d", built, source.skipped)
    write_json(
        folder / "manifest.json",
        encode(seal([part], dataset="rows-0123456789ab", source=source, document={})),
    )
    return DatasetPlace(manifest=folder / "manifest.json", shards=shards)


def run_of(model: str, **changes: Any) -> RunSpec:
    """Return a run of a shipped model; settings by dotted key with `__` for dots."""
    flat = {key.replace("__", "."): value for key, value in changes.items()}
    settings = as_type(with_values({}, SETTINGS | flat), RunSettings)
    return RunSpec(run=model, model=model, model_class=SHIPPED_MODELS[model], settings=settings)


def trained(folder: Path, place: DatasetPlace, spec: RunSpec) -> Path:
    """Train a run, and return the file of its sealed weights."""
    folder.mkdir(exist_ok=True)
    task = rank_task(
        folder, run_json=folder / "run.json", manifest=place.manifest, shards=place.shards, run=spec,
        runtime=rank_runtime(log_every_steps=1000, ledger=False),
    )  # fmt: skip
    seal_model(train(task, ALONE), spec, folder / "model.safetensors")
    return folder / "model.safetensors"


def evaluated(model_file: Path, place: DatasetPlace, spec: RunSpec) -> dict[str, Any]:
    """Return the record of an evaluation."""
    found = evaluate(spec, model_file=model_file, datasets=[place])
    assert found is not None
    return encode(found)


def predicted(
    model_file: Path, place: DatasetPlace, spec: RunSpec, rows: int
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction of the test split, of `rows` rows."""
    folder = model_file.parent / "predictions"
    folder.mkdir()
    parts = range(count_parts(rows, spec.settings.evaluation.batch))
    given = {"model_file": model_file, "trained_on": [place], "rows": place, "split": "test"}
    for _ in predict(spec, **given, folder=folder, parts=parts):
        pass
    found = [read_part(part_file(folder, part)) for part in parts]
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
