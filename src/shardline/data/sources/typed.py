"""Conversion of Arrow columns to columns of a schema, without a loop over rows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.data.columns import Column
from shardline.data.sources import arrow_columns
from shardline.data.sources.arrow_columns import Numbers
from shardline.data.sources.source import Masked, Ragged
from shardline.records.datasets import DTYPES

# Arrow cannot cast all numbers to these types; values are read as the other type first.
_READ_AS = {"float16": "float32", "bool": "uint8"}


def fits(kind: pa.DataType, column: Column) -> bool:
    """Return whether an Arrow type can be converted to a column of the schema.

    Text fits a column of numbers; `convert` checks each value.
    """
    kind = _storage(kind)
    if pa.types.is_null(kind):  # a file in which no row has a value
        return True
    if column.kind == "text":
        return arrow_columns.is_text(kind) or _is_binary(kind)
    if column.kind == "bytes":
        return arrow_columns.is_text(kind) or _is_content(kind)
    depth = 0
    while arrow_columns.is_list(kind):
        kind, depth = _storage(kind.value_type), depth + 1
    known = depth == len(column.shape) + column.varies
    known |= depth == 1 and not column.varies and len(column.shape) > 1  # flat in the file
    return known and (
        arrow_columns.is_number(kind) or arrow_columns.is_text(kind) or pa.types.is_null(kind)
    )


def column_of(kind: pa.DataType, noted: Any = None) -> Column | None:
    """Return the schema column for an Arrow type, or None if there is none.

    Args:
        noted: Feature of the column in the metadata of Hugging Face's `datasets`.
    """
    # Array2D to Array5D
    if isinstance(noted, dict) and str(noted.get("_type")).startswith("Array"):
        shape = list(noted["shape"])
        varies = shape[0] is None
        return Column(dtype=_dtype_of(_leaf(kind)), shape=tuple(shape[varies:]), varies=varies)
    kind = _storage(kind)
    for kind_of_bytes, is_it in (
        ("text", arrow_columns.is_text(kind)),
        ("bytes", _is_content(kind)),
    ):
        if is_it:
            return Column.parse("", kind_of_bytes)
    sizes: list[Any] = []
    while arrow_columns.is_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = _storage(kind.value_type)
    varies = sizes[:1] == [None]
    if None in sizes[varies:] or not arrow_columns.is_number(kind):
        return None
    return Column(dtype=_dtype_of(kind), shape=tuple(sizes[varies:]), varies=varies)


def _leaf(kind: pa.DataType) -> pa.DataType:
    kind = _storage(kind)
    return _leaf(kind.value_type) if arrow_columns.is_list(kind) else kind


def _dtype_of(kind: pa.DataType) -> str:
    name = "float64" if pa.types.is_decimal(kind) else np.dtype(kind.to_pandas_dtype()).name
    return name if name in DTYPES else "int64"


def expected(column: Column) -> str:
    """Return the kind of values that a column expects, for messages."""
    if column.kind != "array":
        return "text in UTF-8" if column.kind == "text" else "bytes"
    one = f"finite numbers ({column})"
    return one if column.shape or column.varies else f"a finite number ({column})"


def read_as(column: Column) -> pa.DataType:
    """Return the Arrow type to parse text as, for a column."""
    if column.kind != "array":
        return pa.string()
    return pa.bool_() if column.dtype == "bool" else _arrow_type(column.dtype)


def _arrow_type(dtype: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(_READ_AS.get(dtype, dtype)))


def convert(
    array: pa.Array, column: Column, *, empty_is_missing: bool = False
) -> tuple[np.ndarray | Ragged | Masked, np.ndarray]:
    """Convert an Arrow column whose type `fits` to values for a `Table`, with a mask [N] bool of bad values.

    Args:
        empty_is_missing: Whether an empty text means a missing value, as in CSV files.
    """
    array = _unpacked(array)
    if arrow_columns.is_text(array.type):
        array = _with_nulls(array.cast(pa.string()), column, empty_is_missing)
    present = ~np.asarray(array.is_null())
    values: np.ndarray | Ragged
    if column.kind != "array":
        values, bad = _contents(array, column.kind)
    elif column.varies:
        values, bad = _varying(array, column)
    else:
        values, bad = _fixed(array, column.shape, column.dtype)
    if column.optional:
        return Masked(values=values, present=present), bad & present
    return values, bad | ~present


def _with_nulls(array: pa.Array, column: Column, empty_is_missing: bool) -> pa.Array:
    """Replace text that means a missing value by null."""
    if column.kind == "array":
        return arrow_columns.without_missing(array)
    if column.optional and empty_is_missing:
        return pc.if_else(pc.equal(array, ""), None, array)
    return array


def _contents(array: pa.Array, kind: str) -> tuple[Ragged, np.ndarray]:
    bad = np.zeros(len(array), dtype=bool)
    # a file in a Hugging Face dataset: a struct of bytes and path
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, "bytes")
        bad = np.asarray(array.is_null())
    array = pc.fill_null(array.cast(pa.large_binary()), b"")
    if kind == "text":
        bad |= _not_utf8(array)
    _, places, content = array.buffers()
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Ragged(values=values, offsets=offsets - offsets[0]), bad


def _not_utf8(array: pa.Array) -> np.ndarray:
    try:
        array.cast(pa.large_string())
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(array[i].as_py()) for i in range(len(array))], dtype=bool)
    return np.zeros(len(array), dtype=bool)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _varying(array: pa.Array, column: Column) -> tuple[Ragged, np.ndarray]:
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(pa.float32()))
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    values, inner_bad = _fixed(_flat(array), column.shape, column.dtype)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    bad = np.zeros(len(array), dtype=bool)
    bad[np.searchsorted(offsets, np.flatnonzero(inner_bad), side="right") - 1] = True
    return Ragged(values=values, offsets=offsets), bad


def _fixed(array: pa.Array, shape: tuple[int, ...], dtype: str) -> Numbers:
    """Return nested lists as an array [N, *shape]. A row is bad if a length or a number in it is bad."""
    array = _unpacked(array)
    if not shape:
        return _numbers(array, dtype)
    if pa.types.is_null(array.type):
        return np.zeros((len(array), *shape), dtype), np.ones(len(array), dtype=bool)
    if not arrow_columns.is_list(_storage(array.type.value_type)) and len(shape) > 1:
        flat, flat_bad = _fixed(array, (int(np.prod(shape)),), dtype)
        return flat.reshape(-1, *shape), flat_bad
    lengths = pc.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
    bad: np.ndarray = np.not_equal(lengths, shape[0])
    good = array.filter(pa.array(~bad)) if bad.any() else array
    inner, inner_bad = _fixed(_flat(good), shape[1:], dtype)
    inner_bad = np.asarray(inner_bad.reshape(-1, shape[0]).any(axis=1))
    if not bad.any():
        return inner.reshape(-1, *shape), inner_bad
    values = np.zeros((len(array), *shape), dtype)
    values[~bad], bad[~bad] = inner.reshape(-1, *shape), inner_bad
    return values, bad


def _numbers(array: pa.Array, dtype: str) -> Numbers:
    values, bad = arrow_columns.numbers(array, _READ_AS.get(dtype, dtype))
    if dtype == "bool":
        return values == 1, bad | (values > 1)
    with np.errstate(over="ignore"):  # too large values become infinite, and are bad then
        narrow = values.astype(dtype, copy=False)
    return narrow, bad | ~np.isfinite(narrow)


def _flat(array: pa.Array) -> pa.Array:
    return _unpacked(array).flatten()


def _unpacked(array: pa.Array) -> pa.Array:
    """Return the storage of an extension array, or the array itself."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_content(kind: pa.DataType) -> bool:
    return _is_binary(kind) or _is_file(kind)


def _is_file(kind: pa.DataType) -> bool:
    index = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return index >= 0 and _is_binary(kind.field(index).type)


def describe(values: Any, *, with_numbers: bool = True) -> str:
    """Return a value in a short form, for messages. A list is shown with its length."""
    if isinstance(values, list) and not with_numbers:
        return f"is a list of {len(values)}"
    if isinstance(values, list):
        numbers = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
        return f"is a list of {len(values)} ({numbers})" if values else "is a list of 0"
    if values is None or values == "":
        return "is empty"
    text = str(values)
    return f"is {text if len(text) <= 40 else text[:37] + '...'}"
