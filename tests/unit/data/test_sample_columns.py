"""What a model is told of its samples is what they are, behind packs and transforms."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardline.config.resolved import as_type
from shardline.config.settings.run_settings import Data
from shardline.data.block_units import BlockUnits
from shardline.data.columns import Column
from shardline.data.packs import PackUnits
from shardline.data.sample_columns import sample_columns
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.records.datasets import DatasetSchema
from shardline.sources import Schema
from tests.support.columns import Given, manifest_of

PHOTOS, DECODED, GREY = (
    DatasetSchema(task="none", classes=[], columns={"image": image, "labels": "int64"})
    for image in ("bytes", "uint8[9,7,3]", "uint8[9,7,1]")
)


def found(schema: DatasetSchema, **data: Any) -> dict[str, str | None] | None:
    return sample_columns(schema, as_type(data, Data))


def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("schema", [PHOTOS, DECODED, GREY], ids=["bytes", "array", "grey"])
@pytest.mark.parametrize(
    ("transform", "is_known"),
    [
        ([{"type": "resize", "size": [8, 6]}, "flip"], True),
        ([{"type": "random_resized_crop", "size": 8}, "normalize"], True),
        ([{"type": "resize", "size": 9}, {"type": "center_crop", "size": [5, 4]}], True),
        ({"type": "center_crop", "size": 5, "mode": "L"}, True),
        ([{"type": "resize", "size": 9}, "normalize"], False),
        (["decode", "flip", {"type": "color_jitter", "hue": 0.1}, "normalize"], None),
        (["flip"], None),
    ],
)
def test_of_shipped_transforms(
    schema: DatasetSchema, transform: Any, is_known: bool | None
) -> None:
    columns = found(schema, transform=transform)
    assert columns is not None
    if is_known is None:
        is_known = schema is not PHOTOS
    if not is_known:
        assert columns == {"image": None, "labels": "int64"}
        return
    steps = TransformSpec(written=transform, what="data.transform").make()
    image: Any = (
        photo() if schema is PHOTOS else np.zeros((9, 7, 1 if schema is GREY else 3), np.uint8)
    )
    sample = steps((1, 2, 3, 4), {"image": image, "labels": np.array(1)})
    value = sample["image"]
    assert columns["image"] == str(Column(dtype=str(value.dtype), shape=value.shape))


@pytest.mark.parametrize("written", ["uint16[*]", "text"])
@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_of_packs(tmp_path: Path, written: str, method: str) -> None:
    value: Any = "abcde" if written == "text" else np.arange(5, dtype=np.uint16)
    rows = [(0, {"tokens": value, "url": "x"})] * 9
    manifest = manifest_of(Given({"tokens": written, "url": "text"}, [rows]), tmp_path)
    shards = ShardMap(manifest, tmp_path)
    split = shards.pieces("train")
    for others in ((), ("url",)):
        of: dict[str, Any] = {"column": "tokens", "length": 8, "others": others}
        units = (
            BlockUnits(shards=shards, split=split, **of)
            if method == "concat"
            else PackUnits(shards=shards, name="train", split=split, **of)
        )
        pack = {"column": "tokens", "length": 8, "method": method, "with": list(others)}
        columns = found(manifest.schema, pack=pack)
        assert columns == {name: str(column) for name, column in units.columns.items()}


def test_of_a_table_and_of_what_only_the_users_code_knows() -> None:
    table = Schema(feature_dtype="uint8", feature_shape=(3, 4, 4)).record()
    assert found(table) == {"features": "uint8[3,4,4]", "labels": "int64"}
    assert found(table, collate="pad") == found(table)
    assert found(table, transform="mypkg.data:Augment") is None
    assert found(PHOTOS, transform=["decode", {"type": "mypkg.data:Crop", "size": 8}]) is None
    assert found(table, collate="mypkg.data:collate") is None
