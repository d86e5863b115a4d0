"""Columns of a dataset: which values a row has, and how a schema writes them.

| written | value of a row |
| --- | --- |
| `int64` | one number |
| `float32[3,224,224]` | an array of this shape |
| `int32[*]`, `float32[*,4]` | an array whose first dimension varies from row to row |
| `bytes` | bytes of any number, such as a JPEG file's |
| `text` | a text of any length, kept as UTF-8 |

A `?` behind it marks a column that some rows have no value of.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from msgspec import UNSET

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.records.datasets import DTYPES, DatasetSchema
from shardline_io.column_names import IDS, LENGTHS, MEAN_COUNT, OFFSETS, PADDING, PRESENT, WEIGHTS

_RESERVED = (OFFSETS, PRESENT, LENGTHS, MEAN_COUNT)  # suffixes
_WRITTEN = re.compile(r"(?P<dtype>\w+)(?:\[(?P<shape>[^\]]*)\])?(?P<optional>\?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a row has under one name.

    Attributes:
        dtype: NumPy name of the stored type; `uint8` where the kind is bytes or text.
        shape: dimensions of a row's value, behind the varying one if there is one.
        varies: whether a dimension before these varies from row to row.
        kind: what a value is to the user: an array, bytes or a text.
        optional: whether a row may have none.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    varies: bool = False
    kind: Literal["array", "bytes", "text"] = "array"
    optional: bool = False

    @classmethod
    def parse(cls, name: str, written: str) -> "Column":
        """Read a column as a schema writes it.

        Args:
            name: of the column, for the message.
            written: such as `int32[*]`; see the table of the module.

        Raises:
            DataError: it is written in another way; the message names column and text.
        """
        found = _WRITTEN.fullmatch(str(written).replace(" ", ""))
        if not found:
            raise _unknown(name, written)
        dtype, shape, optional = found["dtype"], found["shape"], bool(found["optional"])
        if dtype in ("bytes", "text") and shape is None:
            kind: Any = dtype
            return cls(dtype="uint8", varies=True, kind=kind, optional=optional)
        if dtype not in DTYPES:
            raise _unknown(name, written)
        dimensions = shape.split(",") if shape else []
        varies = dimensions[:1] == ["*"]
        dimensions = dimensions[varies:]
        if shape == "" or not all(d.isdecimal() and 0 < int(d) < 2**31 for d in dimensions):
            raise _unknown(name, written)
        return cls(dtype=dtype, shape=tuple(map(int, dimensions)), varies=varies, optional=optional)

    def __str__(self) -> str:
        if self.kind != "array":
            text: str = self.kind
        else:
            dimensions = ["*"] * self.varies + [*map(str, self.shape)]
            text = self.dtype + (f"[{','.join(dimensions)}]" if dimensions else "")
        return text + "?" * self.optional

    def value(self, values: np.ndarray) -> np.ndarray | bytes | str:
        """Return what a varying column's values are to the user."""
        if self.kind == "array":
            return values
        content = values.tobytes()
        return content.decode() if self.kind == "text" else content

    @property
    def item_bytes(self) -> int:
        """Size of a row's value; of one step along its first dimension where that varies."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)


def _unknown(name: str, written: object) -> DataError:
    dtype = re.split(r"[\[?]", str(written))[0]
    remedy = did_you_mean(dtype, (*DTYPES, "bytes", "text"), otherwise="write one of them")
    return DataError(
        f"column {name}={written!r} of a schema is not a type, expected {', '.join(DTYPES)}, each with a shape such as "
        f"[3,224,224] or [*,4] or without, bytes or text, and a ? behind it where some rows have no value; {remedy}"
    )


def parse_columns(columns: Mapping[str, "str | Column"]) -> dict[str, Column]:
    """Read the columns of a schema, in their order.

    Raises:
        DataError: there are none, or a name or a type is not allowed; the message names it.
    """
    if not columns:
        raise DataError("a schema has no columns, expected one at least; name them in `columns`")
    for name in columns:
        is_reserved = name.endswith(_RESERVED) or name in (IDS, WEIGHTS)
        is_reserved |= name.startswith(PADDING)
        if is_reserved or not _NAME.fullmatch(name):
            raise DataError(
                f"column {name!r} of a schema has a name that cannot be stored, expected letters, digits, _, - and "
                f"dots, neither {IDS} nor {WEIGHTS} nor one that begins with {PADDING} or ends with {OFFSETS}, "
                f"{PRESENT}, {LENGTHS} or {MEAN_COUNT}, which shards and batches use themselves; give it another name"
            )
    return {
        name: column if isinstance(column, Column) else Column.parse(name, column)
        for name, column in columns.items()
    }


def varying_arrays(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return the names of the columns of numbers whose first dimension varies."""
    return tuple(name for name, of in columns.items() if of.varies and of.kind == "array")


def features_of(schema: DatasetSchema) -> Column | None:
    """Return the features where a row is these and a label, as in a table; None where it is something else.

    Args:
        schema: a manifest's `schema`; of named columns, these are `features` of one shape and
            `labels` of one number, which each row has.
    """
    columns = columns_of(schema)
    if columns.keys() != {"features", "labels"}:
        return None
    features, labels = columns["features"], columns["labels"]
    is_whole = not any(column.varies or column.optional for column in columns.values())
    return features if is_whole and not labels.shape else None


def columns_of(schema: DatasetSchema) -> dict[str, Column]:
    """Return the columns that a manifest's `schema` names, without the ids, in the order of the file.

    A schema without `columns` is that of a table: `features` of one shape, and `labels`.
    """
    if schema.columns is not UNSET:  # of no column is wrong
        return parse_columns(schema.columns)
    label = "int64" if schema.task == "classification" else "float32"
    features = Column(dtype=str(schema.feature_dtype), shape=tuple(schema.feature_shape or ()))
    return {"features": features, "labels": Column(dtype=label)}
