"""A row of a dataset as short texts, and as a picture if it has an image."""

import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardline.data.columns import columns_of
from shardline.records.base import encode
from shardline.records.datasets import DatasetSchema, Manifest
from shardline.training.pictures import MAX_SIDE, is_image, picture
from shardline_io.column_names import IDS, PRESENT
from shardline_io.errors import DataError
from shardline_io.order.pieces import Piece
from shardline_io.shards import Shards

_MOST_VALUES = 6
_MOST_CHARACTERS = 60


def texts_of(row: Mapping[str, Any], schema: DatasetSchema) -> dict[str, str]:
    """Return the values of a row as short texts, by column.

    Args:
        row: Values by column: numbers, arrays, texts or bytes; None for no value.
    """
    columns, found = columns_of(schema), dict[str, str]()
    for name, value in row.items():
        if name in columns:
            if columns[name].varies and isinstance(value, np.ndarray):
                value = columns[name].value(value)
            is_class = name == "labels" and schema.classes and np.ndim(value) == 0
            found[name] = str(schema.classes[int(value)]) if is_class else _text(value)
    return found


def _text(value: Any) -> str:
    if value is None:
        return "no value"
    if isinstance(value, str):
        more = "..." if len(value) > _MOST_CHARACTERS else ""
        return f'"{value[:_MOST_CHARACTERS]}{more}"'
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    array = np.asarray(value)
    if array.ndim > 1:
        return f"{array.dtype} of shape {list(array.shape)}"
    first = array.reshape(-1)[:_MOST_VALUES].tolist()
    values = [f"{one:.5g}" if isinstance(one, float) else str(one) for one in first]
    more = f", ... ({array.size:,} values)" if array.size > _MOST_VALUES else ""
    return ", ".join(values) + more


def picture_of(row: Mapping[str, Any]) -> str:
    """Return the first image of a row as a PNG data URL; empty if there is none."""
    for value in row.values():
        with suppress(OSError, ValueError, SyntaxError):
            if isinstance(value, bytes):
                return _decoded(value)
            array = np.asarray(value) if not isinstance(value, str) else np.zeros(0)
            if array.dtype.kind in "uif" and array.ndim in (2, 3) and is_image(array.shape):
                bounds = (float(array.min()), float(array.max()))
                return picture(array, bounds, max_side=MAX_SIDE)
    return ""


def _decoded(content: bytes) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        image.draft("RGB", (4 * MAX_SIDE, 4 * MAX_SIDE))
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        return picture(np.asarray(image.convert("RGB")), max_side=MAX_SIDE)


def first_row(manifest: Manifest, shards: Path) -> dict[str, Any]:
    """Return the values of the first row of a sealed dataset by column; empty if it cannot be read.

    Args:
        shards: Folder of the shards.
    """
    number = next((i for i, shard in enumerate(manifest.shards) if sum(shard.rows.values())), None)
    if number is None:
        return {}
    found: dict[str, Any] = {}
    pieces = [Piece(number, 0, 1)]
    with suppress(DataError, OSError, ValueError, KeyError, IndexError):
        tensors = Shards(encode(manifest), shards)
        for name, column in columns_of(manifest.schema).items():
            if tensors.is_optional(name) and not tensors.fixed(name + PRESENT, pieces)[0]:
                found[name] = None
            elif column.varies:
                found[name] = column.value(tensors.rows(name, pieces)[0])
            else:
                found[name] = tensors.fixed(name, pieces)[0]
    return {name: of for name, of in found.items() if name != IDS}
