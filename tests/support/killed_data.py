"""Datasets for `simulated_kills`, and transforms that make tables of their samples."""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from shardline.config.resolved import DatasetPlace
from shardline.core.files import write_json
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from tests.support.columns import manifest_of


class Others(Source):
    """Seven rows of four features a shard, of the classes that the synthetic source has."""

    schema = Schema(feature_shape=(4,), classes=("0", "1"))

    def iter_tables(self, shard: int) -> Any:
        generator = np.random.default_rng(shard)
        labels = np.arange(7) % 2
        features = generator.normal(labels[:, None], 1, (7, 4)).astype(np.float32)
        yield Table(
            ids=100 + 7 * shard + np.arange(7), features=features, labels=labels, splits=SPLITS
        )


class Tokens(Source):
    """Documents of one to nine tokens."""

    schema = Schema(columns={"tokens": "uint8[*]"})

    def iter_tables(self, shard: int) -> Any:
        generator = np.random.default_rng(shard + self.num_shards)
        tokens = [generator.integers(0, 9, 1 + row, np.uint8) for row in range(9)]
        ids = 9 * shard + np.arange(9)
        yield Table(ids=ids, columns={"tokens": tokens}, splits=np.arange(9) % 2)


SPLITS = np.array([0, 0, 0, 1, 1, 2, 0])


class Jitter:
    """Adds chance to a table's features."""

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        noise = generator.normal(0, 0.1, 4).astype(np.float32)
        return {**sample, "features": sample["features"] + noise}


class Guess:
    """Makes a table of a block of tokens: from four of them, some of which chance hides, to the fifth's parity."""

    def __call__(
        self, sample: dict[str, Any], generator: np.random.Generator | None = None
    ) -> dict[str, Any]:
        features = sample["tokens"][:4].astype(np.float32)
        if generator:
            features *= generator.random(4) > 0.2
        return {"features": features, "labels": np.int64(sample["tokens"][4] % 2)}


class Label:
    """Gives a block of tokens a class of three, and chance hides some of the tokens in training."""

    def __call__(
        self, sample: dict[str, Any], generator: np.random.Generator | None = None
    ) -> dict[str, Any]:
        tokens = sample["tokens"].copy()
        if generator:
            tokens[generator.random(len(tokens)) < 0.2] = 0
        return {"tokens": tokens, "labels": np.int64(sample["tokens"].sum() % 3)}


class Hide:
    """Hides some tokens of a block behind 8, each of which is its own label then; as the documentation has it."""

    def __call__(
        self, sample: dict[str, Any], generator: np.random.Generator | None = None
    ) -> dict[str, Any]:
        tokens = sample["tokens"].astype(np.int64)
        generator = generator or np.random.default_rng(int(tokens.sum()))
        hidden = generator.random(len(tokens)) < 0.4
        labels = np.where(hidden, tokens, -100)
        return {**sample, "tokens": np.where(hidden, 8, tokens), "labels": labels}


def others(folder: Path, like: DatasetPlace) -> DatasetPlace:
    """Build rows that can be mixed with those of another dataset."""
    return _built(Others(num_shards=3), folder)


def tokens_of(folder: Path, number: int, weight: str) -> DatasetPlace:
    """Build documents; those of another number of shards are others."""
    place = _built(Tokens(num_shards=1 + number), folder)
    return DatasetPlace(manifest=place.manifest, shards=place.shards, weight=weight)


def _built(source: Source, folder: Path) -> DatasetPlace:
    folder.mkdir()
    manifest = structs.replace(manifest_of(source, folder), dataset=folder.name)
    write_json(folder / "manifest.json", encode(manifest))
    return DatasetPlace(manifest=folder / "manifest.json", shards=folder)
