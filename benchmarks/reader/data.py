"""The rows that every competitor reads, written once by Shardline."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.reader.task import SHAPES

from shardline.core import files
from shardline.core.files import write_json
from shardline.data import build as shards
from shardline.data import shard_format as shardfile
from shardline.data import statistics
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.dataset import read_manifest
from shardline.data.integrity import Verifier
from shardline.data.shard_map import ShardMap
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table

SHARES = {"train": 0.98, "validation": 0.01, "test": 0.01}
_NUM_BLOCKS = 4  # random numbers are slow: all shards are copies of these blocks, in turn


class Noise(Source):
    """Rows of random numbers with two classes.

    Args:
        shape: name of the shape of a row.
    """

    def __init__(self, *, num_shards: int, shape: str) -> None:
        super().__init__(num_shards=num_shards)
        self.shape = SHAPES[shape]
        self._blocks = [self._draw(seed) for seed in range(min(num_shards, _NUM_BLOCKS))]

    @property
    def schema(self) -> Schema:
        """A flat row."""
        return Schema(
            feature_shape=(self.shape.features,),
            feature_dtype=self.shape.dtype,
            classes=("0", "1"),
        )

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows in one block."""
        rows = self.shape.rows_per_shard
        features, labels = self._blocks[shard % len(self._blocks)]
        ids = np.arange(shard * rows, (shard + 1) * rows, dtype=np.int64)
        yield Table(ids=ids, features=features, labels=labels)

    def _draw(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        generator, rows = np.random.default_rng(seed), self.shape.rows_per_shard
        if self.shape.dtype == "float32":
            features = generator.random((rows, self.shape.features), dtype=np.float32)
        else:
            features = generator.integers(0, 256, (rows, self.shape.features), dtype=np.uint8)
        return features, generator.integers(0, 2, rows)


def make_dataset(folder: Path, shape: str, num_shards: int) -> None:
    """Write and seal a dataset, with its `manifest.json`, unless this code has done so before.

    The rows are the same each time, so what peers made of them stays good.
    """
    marker, writer = folder / "writer", _digest_of_writer()
    if marker.exists() and marker.read_text() == writer:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_dataset(folder, Noise(num_shards=num_shards, shape=shape), f"{shape}-{0:012x}")
    marker.write_text(writer)


def write_dataset(folder: Path, source: Source, dataset: str) -> None:
    """Write and seal a dataset, with its `manifest.json`."""
    shards_of_source = build_shards(source, range(source.num_shards), SHARES, folder)
    part = describe_part("all", shards_of_source, {})
    manifest = seal([part], dataset=dataset, source=source, document={})
    write_json(folder / "manifest.json", encode(manifest))


def _digest_of_writer() -> str:
    modules = (files, shardfile, shards, statistics)
    return hashlib.sha256(b"".join(Path(m.__file__).read_bytes() for m in modules)).hexdigest()


def verify(folder: Path) -> None:
    """Verify each shard against its checksum once, so that no later reading has to.

    The first training on a node does this beside its reading.
    """
    manifest = read_manifest(folder / "manifest.json")
    verifier = Verifier(ShardMap(manifest, folder), "first")
    for shard in range(len(manifest.shards)):
        verifier.check(shard)
