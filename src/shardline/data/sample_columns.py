"""Columns of a run's samples after packing and transforms, as far as settings determine them."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from shardline.config.code_paths import SHIPPED_TRANSFORMS, collate_path, transforms_of
from shardline.config.settings.run_settings import Data, Pack
from shardline.data.columns import Column, columns_of, parse_columns
from shardline.data.packs import CU_SEQLENS, POSITIONS
from shardline.records.datasets import DatasetSchema

_SIZED = ("random_resized_crop", "resize", "center_crop")
_CHANNELS = {"RGB": 3, "L": 1}
_UNKNOWN = 0  # height or width that depends on the image


def sample_columns(schema: DatasetSchema, data: Data) -> dict[str, str | None] | None:
    """Return the columns of the training's samples, from which a model can derive its sizes.

    Args:
        schema: a manifest's `schema`.
        data: the run's `data` settings.

    Returns:
        Type by column, as in a schema: `{"image": "float32[3,224,224]", "labels": "int64"}`. A type
        is None if settings do not determine the shape, for example of decoded photos that are not
        resized. None instead of the dict if the user's code makes the samples or the batch.
    """
    columns = columns_of(schema)
    if schema.sampled is not UNSET:
        if data.transform or not schema.sampled:
            return None
        columns = parse_columns(schema.sampled)
    if data.pack:
        columns = _packed(columns, data.pack)
    for step in transforms_of(data.transform):
        if step["type"] not in SHIPPED_TRANSFORMS or step["type"] == "callable":
            return None
        name = str(step.get("column", "image"))
        if name in columns:
            columns[name] = _transformed(columns[name], step)
    if collate_path(data.collate) or data.collate == "nested":
        return None
    return {
        name: None if _UNKNOWN in column.shape else str(column) for name, column in columns.items()
    }


def _packed(columns: Mapping[str, Column], pack: Pack) -> dict[str, Column]:
    names, length = (pack.column, *pack.with_), pack.length
    if not columns.keys() >= set(names):
        return {}  # the reader of the samples raises the error
    packed = {
        name: Column(dtype=columns[name].dtype, shape=(length, *columns[name].shape))
        for name in names
    }
    if pack.method == "best_fit":
        packed[pack.column + POSITIONS] = Column(dtype="int32", shape=(length,))
        packed[pack.column + CU_SEQLENS] = Column(dtype="int32", varies=True)
    return packed


def _transformed(column: Column, step: Mapping[str, Any]) -> Column:
    """Return the type of an image after a shipped transform, which also decodes bytes."""
    kind, size, shape = step["type"], step.get("size"), column.shape
    if column.kind == "bytes":
        shape = (_UNKNOWN, _UNKNOWN, _CHANNELS.get(step.get("mode", "RGB"), 3))
    if len(shape) != 3:
        return column  # the transform rejects the column
    if kind in _SIZED:
        size = _UNKNOWN if kind == "resize" and isinstance(size, int) else size  # the shorter edge
        shape = (*([size, size] if isinstance(size, int) else size or ()), shape[2])
    if kind == "normalize":
        return Column(dtype="float32", shape=(shape[2], *shape[:2]))
    return Column(dtype=column.dtype, shape=shape)
