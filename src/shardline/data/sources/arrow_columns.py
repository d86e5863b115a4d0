"""Conversion of Arrow columns to numbers, with a mask of the values that are not numbers."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.data.sources.from_files import group_keys, text_id
from shardline.data.splits import SPLIT_NAMES

# Texts that pyarrow's CSV reader treats as a missing number.
_MISSING = pa.array(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A",
     "NA", "NULL", "NaN", "n/a", "nan", "null"]
)  # fmt: skip

_INDEX = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
_NUMBER = r"[+\u2212-]?(?:\d{1,3}(?:[.,'\s]\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}|\d+)?(?:[.,]\d+)?(?:[eE][+-]?\d+)?"
_MARKED = re.compile(rf"(?=.*\d)[$€£¥]?\s?(?:{_NUMBER}|\({_NUMBER}\))\s?[%€$£¥]?")
_PLAIN = re.compile(r"\s*[+-]?\d*\.?\d+(?:[eE][+-]?\d+)?\s*")
_ROWS = 1000
_ENOUGH = 20

Numbers = tuple[np.ndarray, np.ndarray]  # values, and which of them are bad


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is a type of numbers."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a type of text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return any(
        t(kind) for t in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a type of lists."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def numbers(column: pa.Array, dtype: str) -> Numbers:
    """Return a column as numbers [N], and a mask of values that are missing, infinite or not numbers.

    Args:
        column: Numbers, or text to parse as numbers.
        dtype: NumPy name of the type. A value out of range of an integer type is bad.
    """
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    if is_text(column.type):
        column = without_missing(column)
        for word, number in (("true", "1"), ("false", "0")):
            column = pc.if_else(pc.equal(pc.utf8_lower(column), word), number, column)
    column = cast(column, kind)
    if not column.null_count:  # the common case needs no mask of nulls
        values = column.to_numpy(zero_copy_only=False)
        return values, ~np.isfinite(values)
    bad = np.asarray(column.is_null(nan_is_null=True))
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values, bad | ~np.isfinite(values)


def with_point(column: pa.Array) -> pa.Array:
    """Replace decimal commas by points in text. Text with a point is not a number afterwards."""
    if not is_text(column.type):
        return column
    return pc.replace_substring(pc.replace_substring(column.cast(pa.string()), ".", "?"), ",", ".")


def without_missing(column: pa.Array) -> pa.Array:
    """Strip spaces at the ends of text, and replace text for a missing number by null."""
    column = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return pc.if_else(pc.is_in(column, _MISSING), None, column)


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column, with null for values that cannot be cast."""
    # a cast to float rounds integers above 2^24, as it rounds other numbers
    rounds = pa.types.is_integer(column.type) and pa.types.is_floating(kind)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    try:
        return column.cast(kind, safe=not rounds)
    except pa.ArrowInvalid:
        return pa.concat_arrays([_cast_one(column[i : i + 1], kind) for i in range(len(column))])


def _cast_one(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def lists(column: pa.Array, size: int, dtype: str) -> Numbers:
    """Return a column of lists as [N, size]. A row is bad if its length or a value is bad."""
    lengths = pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    bad = lengths != size
    values = np.zeros((len(column), size), dtype=dtype)
    whole = column.filter(pa.array(~bad))
    inner, inner_bad = numbers(whole.flatten(), dtype)
    values[~bad] = inner.reshape(-1, size)
    bad[~bad] = inner_bad.reshape(-1, size).any(axis=1)
    return values, bad


def labels_of(column: pa.Array, classes: Sequence[str]) -> Numbers:
    """Return the class index of each value [N] int64. A value that is not a class is bad."""
    if pa.types.is_floating(column.type) or (pa.types.is_boolean(column.type) and "1" in classes):
        column = cast(column, pa.int64())  # 1.0 and true are class 1
    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    found = pc.index_in(text, pa.array(classes, pa.string()))
    return found.fill_null(0).to_numpy().astype(np.int64), np.asarray(found.is_null())


def ids_of(column: pa.Array, *, are_numbers: bool) -> Numbers:
    """Return ids [N] int64: whole numbers as they are, text by its hash. A missing id is bad."""
    if are_numbers:
        return numbers(column, "int64")
    texts = column.cast(pa.string()).to_pylist()
    return (
        np.array([text_id(text or "") for text in texts], dtype=np.int64),
        np.array([not text for text in texts], dtype=bool),
    )


def groups_of(column: pa.Array) -> Numbers:
    """Return the key of each row's group [N] int64. A missing or empty group is bad, and so is a fraction."""
    if pa.types.is_floating(column.type):  # whole numbers beside gaps, as pandas writes them
        column = cast(column, pa.int64())
    text = pc.utf8_trim_whitespace(column.cast(pa.string())).fill_null("")
    found = text.dictionary_encode()
    keys = group_keys(found.dictionary.to_pylist())
    return keys[found.indices.to_numpy()], np.asarray(pc.equal(text, ""))


def strata_of(column: pa.Array) -> np.ndarray:
    """Return the key of each row's class [N] int64; missing values are a class."""
    text = pc.utf8_trim_whitespace(column.cast(pa.string())).fill_null("")
    found = text.dictionary_encode()
    keys: np.ndarray = group_keys(found.dictionary.to_pylist())[found.indices.to_numpy()]
    return keys


def times_of(column: pa.Array) -> Numbers:
    """Return times as numbers [N] float64: numbers as they are, dates in nanoseconds. A missing time is bad."""
    if is_text(column.type) and len(numbers(column, "float64")[1].nonzero()[0]):
        column = _dates(pc.utf8_trim_whitespace(column.cast(pa.string())))
    if pa.types.is_temporal(column.type):
        is_time = pa.types.is_time(column.type) or pa.types.is_duration(column.type)
        column = column if is_time else column.cast(pa.timestamp("ns"), safe=False)
        column = column.cast(pa.int64())
    return numbers(column, "float64")


def _dates(text: pa.Array) -> pa.Array:
    """Return ISO 8601 texts as timestamps, with null for other texts."""
    kind = pa.timestamp("ns")
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pa.concat_arrays([_cast_one(text[i : i + 1], kind) for i in range(len(text))])


def splits_of(column: pa.Array) -> Numbers:
    """Return the split of each value [N], as an index into SPLITS. A value that is not a split is bad."""
    names = pa.array(list(SPLIT_NAMES))
    text = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.string())))
    found = pc.index_in(text, names)
    places = np.array(list(SPLIT_NAMES.values()), dtype=np.int64)
    return places[found.fill_null(0).to_numpy()], np.asarray(found.is_null())


# ---- ambiguous columns: an index of a data frame, text that may be numbers


def is_index(name: str) -> bool:
    """Return whether a column has a name that pandas writes for the index of a data frame."""
    return _INDEX.fullmatch(name) is not None


def index_columns(schema: pa.Schema) -> list[str]:
    """Return the index columns of a Parquet file that pandas wrote."""
    noted = schema.pandas_metadata if schema.metadata else None
    named = (noted or {}).get("index_columns", ())
    return [name for name in named if isinstance(name, str)]


def are_unique(column: pa.Array) -> bool:
    """Return whether all of the first values differ, of enough values to be no chance."""
    values = column[:_ROWS].drop_null()
    return len(values) >= _ENOUGH and pc.count_distinct(values).as_py() == len(values)


def is_marked(text: str) -> bool:
    """Return whether a text is a number in any notation, such as 1,5 or 1,000.5 or 5% or $5."""
    return _MARKED.fullmatch(text.strip()) is not None


def as_numbers(column: pa.Array) -> list[str]:
    """Return the first texts of a column if all of them may be numbers; else an empty list."""
    texts = without_missing(column[:_ROWS]).drop_null().to_pylist()
    return texts if all(map(is_marked, texts)) else []


def is_plain(text: str) -> bool:
    """Return whether a text is a number as Python writes it."""
    return _PLAIN.fullmatch(text) is not None
