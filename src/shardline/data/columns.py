"""Columns of a dataset, and the text form of their types in a schema.

| type | value of a row |
| --- | --- |
| `int64` | one number |
| `float32[3,224,224]` | an array of this shape |
| `int32[*]`, `float32[*,4]` | an array whose first dimension varies from row to row |
| `bytes` | any number of bytes, for example a JPEG file |
| `text` | text of any length, stored as UTF-8 |

A `?` after the type marks an optional column: some rows have no value.
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
from shardline_io.column_names import (
    IDS,
    LENGTHS,
    MEAN_COUNT,
    OFFSETS,
    PADDING,
    PRESENT,
    WEIGHT,
    WEIGHTS,
)

_RESERVED = (OFFSETS, PRESENT, LENGTHS, MEAN_COUNT)  # suffixes
_WRITTEN = re.compile(r"(?P<dtype>\w+)(?:\[(?P<shape>[^\]]*)\])?(?P<optional>\?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Column:
    """Type of a column.

    Attributes:
        dtype: NumPy name of the stored type; `uint8` for bytes and text.
        shape: shape of a row's value, without the varying first dimension.
        varies: whether values have a first dimension that varies from row to row.
        kind: kind of the values that users get: "array", "bytes" or "text".
        optional: whether rows may have no value.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    varies: bool = False
    kind: Literal["array", "bytes", "text"] = "array"
    optional: bool = False

    @classmethod
    def parse(cls, name: str, written: str) -> "Column":
        """Parse the type of a column.

        Args:
            name: name of the column, for the message.
            written: type as in a schema, such as `int32[*]`; see the module's table.

        Raises:
            DataError: the text is not a type; names column and text.
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
        # preprocessing may make categories only
        is_empty = name == "features" and dimensions == ["0"]
        is_good = all(d.isdecimal() and 0 < int(d) < 2**31 for d in dimensions)
        if shape == "" or not (is_good or is_empty):
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
        """Return a varying column's values as users get them: as an array, bytes or str."""
        if self.kind == "array":
            return values
        content = values.tobytes()
        return content.decode() if self.kind == "text" else content

    @property
    def item_bytes(self) -> int:
        """Size of a row's value; for a varying column, of one step along its first dimension."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)


def _unknown(name: str, written: object) -> DataError:
    dtype = re.split(r"[\[?]", str(written))[0]
    remedy = did_you_mean(dtype, (*DTYPES, "bytes", "text"), otherwise="write one of them")
    return DataError(
        f"column {name}={written!r} of a schema is not a type, expected bytes, text or one of {', '.join(DTYPES)}, "
        f"the latter optionally with a shape such as [3,224,224] or [*,4], and ? at the end if rows may have no value; "
        f"{remedy}"
    )


def parse_columns(columns: Mapping[str, "str | Column"]) -> dict[str, Column]:
    """Parse the columns of a schema, in order.

    Raises:
        DataError: there are no columns, or a name or type is invalid; names the column.
    """
    if not columns:
        raise DataError("a schema has no columns, expected at least one; list them in `columns`")
    for name in columns:
        is_reserved = name.endswith(_RESERVED) or name in (IDS, WEIGHTS)
        is_reserved |= name.startswith(PADDING)
        if is_reserved or not _NAME.fullmatch(name):
            raise DataError(
                f"column {name!r} of a schema has an invalid name, expected letters, digits, _, - and dots, at most "
                f"100, and none of the reserved names {IDS}, {WEIGHTS}, {PADDING}*, *{OFFSETS}, *{PRESENT}, "
                f"*{LENGTHS} and *{MEAN_COUNT}; rename the column"
            )
    return {
        name: column if isinstance(column, Column) else Column.parse(name, column)
        for name, column in columns.items()
    }


def varying_arrays(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return the names of the array columns whose first dimension varies."""
    return tuple(name for name, of in columns.items() if of.varies and of.kind == "array")


def counted_columns(schema: DatasetSchema, columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return the columns that batches count: varying arrays and, if the schema has it, the rows' weight."""
    return (*varying_arrays(columns), *([WEIGHT] if schema.weighted else []))


def features_of(schema: DatasetSchema) -> Column | None:
    """Return the column `features` if rows consist of features and a label, as in a table; else None.

    Args:
        schema: a manifest's `schema`. Named columns count as such rows if they are `features` of one
            shape and `labels` of one number or of the schema's `targets`, and neither is optional. Weights
            of the rows may be beside them. The transforms of a torch dataset count.
    """
    columns = columns_of(schema)
    if schema.sampled is not UNSET:
        columns = parse_columns(schema.sampled) if schema.sampled else {}
    if columns.keys() - ({WEIGHT} if schema.weighted else set()) != {"features", "labels"}:
        return None
    features, labels = columns["features"], columns["labels"]
    is_whole = not any(column.varies or column.optional for column in columns.values())
    return features if is_whole and (not labels.shape or schema.targets) else None


def stored_columns(schema: DatasetSchema) -> dict[str, Column]:
    """Return the columns in the shards, without the ids; others than `columns_of` with preprocessing."""
    return parse_columns(schema.stored) if schema.stored else columns_of(schema)


def is_plain_table(schema: DatasetSchema) -> bool:
    """Return whether shards have only features and labels, without gaps between them."""
    return not (schema.columns or schema.stored)


def columns_of(schema: DatasetSchema) -> dict[str, Column]:
    """Return the columns of a manifest's `schema`, without the ids, in the order of the file.

    A schema without `columns` describes a table: `features` of one shape, and `labels`.
    """
    if schema.columns is not UNSET:  # an empty table is an error
        return parse_columns(schema.columns)
    label = "int64" if schema.task == "classification" else "float32"
    features = Column(dtype=str(schema.feature_dtype), shape=tuple(schema.feature_shape or ()))
    return {"features": features, "labels": Column(dtype=label)}
