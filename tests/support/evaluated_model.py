"""A small model judged on a small dataset by the real evaluation, for what shows its result."""

import numpy as np
import pytorch_lightning as pl
import torch
from safetensors.torch import save_file

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Data, Evaluation, RunSettings
from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, seal
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training.evaluate import evaluate

SHARES = {"train": 0.5, "validation": 0.1, "test": 0.4}
CLASSES = ("cat", "dog", "eel")


class Rows(Source):
    """Random rows whose ids tell neither their shard's order nor their split."""

    def __init__(self, *, num_shards, shape, dtype, task="classification", rows=90):
        super().__init__(num_shards=num_shards)
        self.rows, generator = rows, np.random.default_rng(5)
        self.ids = generator.permutation(10 * rows * num_shards)[: rows * num_shards]
        high = 256 if dtype == "uint8" else 9
        self.features = generator.integers(0, high, (rows * num_shards, *shape)).astype(dtype)
        self._task, self._shape, self._dtype = task, shape, dtype
        self.labels = generator.integers(0, 3, rows * num_shards)
        if task == "regression":
            self.labels = generator.normal(size=rows * num_shards).astype(np.float32)

    @property
    def schema(self):
        classes = CLASSES if self._task == "classification" else ()
        return Schema(
            feature_shape=self._shape, feature_dtype=self._dtype, task=self._task, classes=classes
        )

    def iter_tables(self, shard):
        part = slice(shard * self.rows, (shard + 1) * self.rows)
        yield Table(ids=self.ids[part], features=self.features[part], labels=self.labels[part])


class Flat(pl.LightningModule):
    """A linear model of whatever it is given."""

    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(feature_shape)), num_classes or 1)

    def forward(self, features):
        return self.layer(features.flatten(1))


def fit(model, source, num_steps):
    """Train on every row of the source, those of the test split too: the looks matter alone."""
    tables = [table for shard in range(source.num_shards) for table in source.iter_tables(shard)]
    features = torch.from_numpy(np.concatenate([table.features for table in tables])).float()
    labels = torch.from_numpy(np.concatenate([table.labels for table in tables]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        outputs, is_class = model(features), source.schema.task == "classification"
        loss = torch.nn.functional.cross_entropy if is_class else torch.nn.functional.mse_loss
        optimizer.zero_grad()
        loss(outputs if is_class else outputs.squeeze(1), labels).backward()
        optimizer.step()


def sealed_model(folder, source, num_steps=0, model_class=Flat, normalize="none", **evaluation):
    """Build, seal, and train if asked to; return what `evaluate` takes, and the model."""
    num_shards = source.num_shards
    part = describe_part("d", build_shards(source, range(num_shards), SHARES, folder), {})
    sealed = seal([part], dataset="rows-0123456789ab", source=source, document={})
    write_json(folder / "manifest.json", encode(sealed))
    torch.manual_seed(3)
    model = model_class(source.schema.feature_shape, len(source.schema.classes))
    fit(model, source, num_steps)
    save_file(model.state_dict(), folder / "model.safetensors")
    spec = RunSpec(
        run="flat",
        model_class=f"{model_class.__module__}:{model_class.__name__}",
        settings=RunSettings(
            evaluation=Evaluation(**{"batch": 16, **evaluation}),
            data=Data(normalize=normalize, window_bytes=4000),
        ),
    )
    given = {
        "spec": spec,
        "model_file": folder / "model.safetensors",
        "datasets": [DatasetPlace(manifest=folder / "manifest.json", shards=folder)],
        "has_test_step": "test_step" in vars(model_class),
        "has_samples": "describe_sample" in vars(model_class),
    }
    return given, model


def evaluated(folder, source, num_steps=0, model_class=Flat, **settings):
    """Build, seal, train if asked to, and evaluate; return the result and the model."""
    given, model = sealed_model(folder, source, num_steps, model_class, **settings)
    return encode(evaluate(**given)), model
