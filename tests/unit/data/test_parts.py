"""Statistics that are counted from shards are those that were computed when the shards were built."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import ValidationError, convert

from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.data import build
from shardline.data.build import build_shards, describe_part
from shardline.data.moments import FeatureSummary
from shardline.data.parts import differing, read_part
from shardline.errors import DataError
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.results.verify_store import check_statistics
from shardline.sources import Schema, Source, Table
from tests.support.tampering import changed

RNG = np.random.default_rng(7)
KINDS: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
    "float32": (RNG.normal(1e4, 1.0, (700, 3)), ("a", "b")),
    "float16": (RNG.normal(0, 100, (700, 2, 2)), ("a", "b")),
    "float64": (RNG.normal(0, 1e200, (700, 2)), ("a", "b")),
    "uint8": (RNG.integers(0, 256, (700, 3, 4, 3)), ("a", "b")),
    "int64": (RNG.integers(-(2**40), 2**40, (700, 2)), ("a", "b")),
    "bool": (RNG.integers(0, 2, (700, 5)), ()),
    "int16": (np.full((700, 1), -3), ()),  # a constant, and a regression
}


class Cut(Source):
    """Three shards of several tables; the second has no train row."""

    def __init__(self, dtype: str) -> None:
        super().__init__(num_shards=3)
        values, self.classes = KINDS[dtype]
        self.values, self.dtype = values.astype(dtype), dtype

    @property
    def schema(self) -> Schema:
        task: Any = "classification" if self.classes else "regression"
        shape = self.values.shape[1:]
        return Schema(
            feature_shape=shape, feature_dtype=self.dtype, task=task, classes=self.classes
        )

    def iter_tables(self, shard: int) -> Any:
        for rows in np.array_split(np.arange(700), 4):
            labels = rows % 2 if self.classes else rows / 7
            splits = rows % 2 + 1 if shard == 1 else rows % 3
            labels = labels.astype(self.schema.label_dtype)
            yield Table(ids=rows, features=self.values[rows], labels=labels, splits=splits)


@pytest.mark.filterwarnings("ignore:overflow")  # float64 whose squares are none
@pytest.mark.parametrize("dtype", [*KINDS])
def test_a_list_of_any_kind_of_rows_is_read_as_it_was_sealed(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "parts" / "00000-00002.json"
    part = describe_part("d", build_shards(Cut(dtype), range(3), {}, tmp_path), {})
    write_json(path, seal(encode(part)))
    sealed = read_part(path, "d", remedy="delete it").statistics
    assert str(sealed) == str(part.statistics).replace("nan", "None").replace("inf", "None")
    write_json(path, encode(part))
    with pytest.raises(DataError, match="; delete it"):
        read_part(path, "d", remedy="delete it")


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [*KINDS])
def test_a_manifest_of_any_kind_of_rows_is_verified_against_them(
    tmp_path: Path, dtype: str
) -> None:
    source = Cut(dtype)
    part = describe_part("d", build_shards(source, range(3), {}, tmp_path), {})
    sealed = build.seal([part], dataset="d", source=source, document={})
    write_json(tmp_path / "manifest.json", encode(sealed))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert check_statistics(tmp_path, convert(manifest, Manifest)) is None
    counted = changed(manifest, ("statistics", "features", "count"), 1)
    assert "the manifest differ in count" in str(
        check_statistics(tmp_path, convert(counted, Manifest))
    )
    unnamed = changed(manifest, ("shards", 0, "rows"), {"train": 1, "val": 0, "test": 0})
    with pytest.raises(ValidationError, match="rows of train, val, test"):
        convert(unnamed, Manifest)


def test_summaries_of_other_lengths_differ() -> None:
    one = FeatureSummary(2, *(np.array([value]) for value in (1.0, 0.5, 0.5, 1.5)))
    assert differing(one, one) == []
    assert differing(one, replace(one, mean=np.array([1.0, 1.0]))) == ["mean"]
    assert differing(replace(one, count=3), one) == ["count"]
