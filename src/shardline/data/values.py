"""Conversion of a source's values to arrays of the schema's types."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources.source import Masked, Ragged

_HINTS = {"O": " (rows of different lengths, or text?)", "f": " (a missing value?)"}


def read_array(name: str, values: object, wanted: str, where: str) -> np.ndarray:
    """Return values as an array that converts to the wanted type; floats may round.

    Args:
        wanted: NumPy name of the type.

    Raises:
        DataError: the values cannot be converted; names source, shard and column.
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(
            f"{where} returned {name} of different lengths, expected rows of one shape; "
            "pad or cut them in the source"
        ) from None
    if array is not values and _fits(array, np.dtype(wanted)):
        return array.astype(wanted)  # a list of Python's integers
    is_float = np.dtype(wanted).kind == "f"  # may round; an integer may not wrap around
    if not np.can_cast(array.dtype, wanted, "same_kind" if is_float else "safe"):
        raise DataError(
            f"{where} returned {name} of type {array.dtype}{_HINTS.get(array.dtype.kind, '')}, expected {wanted}; "
            f"{_remedy(name, array)}"
        )
    return array


def _remedy(name: str, array: np.ndarray) -> str:
    if name != "labels" or array.dtype.kind != "f":
        return "convert them in the source, or correct its schema"
    numbers = 'for regression, use Schema(task="regression") or a column `labels` of type float32'
    if (array[np.isfinite(array)] % 1).any():  # not class indices
        return numbers
    return f'{numbers}; for classes, use labels.astype("int64") in the source'


def _fits(array: np.ndarray, wanted: np.dtype[Any]) -> bool:
    if array.dtype.kind != "i" or wanted.kind not in "iu" or not array.size:
        return False
    limits = np.iinfo(wanted)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def split_missing(
    name: str, column: Column, values: Any, where: str
) -> tuple[Any, np.ndarray | None]:
    """Replace None by empty values; also return whether each row of an optional column has a value.

    Returns:
        The values, and [N] bool for an optional column, else None.

    Raises:
        DataError: a row has no value in a column that is not optional.
    """
    if isinstance(values, Masked) and column.optional:
        return values.values, values.present
    if isinstance(values, np.ndarray | Ragged):
        rows = len(values) if isinstance(values, np.ndarray) else len(values.offsets) - 1
        return values, np.ones(rows, dtype=bool) if column.optional else None
    values = list(values)
    missing = [place for place, value in enumerate(values) if value is None]
    if not column.optional:
        if missing:
            raise DataError(
                f"{where} returned no {name} for row {missing[0]} of a table, expected a value for each row; write "
                f'"{name}": "{column}?" in its schema if rows may have no value'
            )
        return values, None
    shape = (0, *column.shape) if column.varies else column.shape
    empty: Any = {"text": "", "bytes": b""}.get(column.kind, np.zeros(shape, column.dtype))
    present = np.ones(len(values), dtype=bool)
    present[missing] = False
    return [empty if value is None else value for value in values], present


def read_ragged(name: str, column: Column, values: Any, ids: np.ndarray, where: str) -> Ragged:
    """Return the values of a varying column back to back.

    Args:
        values: list of arrays, bytes or texts, or a `Ragged`.
        ids: row ids [N], for the message.

    Raises:
        DataError: the values do not match the schema; names column and row id.
    """
    if isinstance(values, Ragged):
        ragged = _given_ragged(name, column, values, where)
    elif column.kind == "array":
        ragged = _from_arrays(name, column, values, ids, where)
    else:
        ragged = _from_bytes(name, column, values, ids, where)
    if column.kind == "text" and isinstance(values, Ragged):
        _check_text(name, ragged, ids, where)
    return ragged


def _given_ragged(name: str, column: Column, given: Ragged, where: str) -> Ragged:
    values = read_array(name, given.values, column.dtype, where).astype(column.dtype, copy=False)
    offsets = read_array(f"the offsets of {name}", given.offsets, "int64", where)
    offsets = offsets.astype(np.int64, copy=False)
    is_good = (
        values.shape[1:] == column.shape
        and values.ndim == 1 + len(column.shape)
        and offsets.ndim == 1
        and len(offsets) > 0
        and offsets[0] == 0
        and offsets[-1] == len(values)
        and (np.diff(offsets) >= 0).all()
    )
    if not is_good:
        raise DataError(
            f"{where} returned {name} as a Ragged with values of shape {values.shape} and offsets of shape "
            f"{offsets.shape}, expected {column} with offsets that rise from 0 to the number of values; correct it"
        )
    return Ragged(values=np.ascontiguousarray(values), offsets=offsets)


def _from_arrays(
    name: str, column: Column, values: Sequence[Any], ids: np.ndarray, where: str
) -> Ragged:
    rows = []
    for place, value in enumerate(values):
        row = (
            read_array(name, value, column.dtype, f"{where}: row id {_id(ids, place)}")
            if (len(value) if hasattr(value, "__len__") else 1)
            else np.zeros((0, *column.shape), column.dtype)
        )
        if row.ndim != 1 + len(column.shape) or row.shape[1:] != column.shape:
            raise DataError(
                f"{where}: row id {_id(ids, place)} has {name} of shape {row.shape}, expected {column}; "
                "correct the row or the schema in the source"
            )
        rows.append(row)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    empty = np.zeros((0, *column.shape), column.dtype)
    with np.errstate(over="ignore"):  # values too large for the type become infinite, and are found
        flat = np.concatenate([empty, *rows]).astype(column.dtype, copy=False)
    return Ragged(values=flat, offsets=offsets)


def _from_bytes(
    name: str, column: Column, values: Sequence[Any], ids: np.ndarray, where: str
) -> Ragged:
    encoded = []
    for place, value in enumerate(values):
        try:
            encoded.append(value.encode() if column.kind == "text" else bytes(memoryview(value)))
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: row id {_id(ids, place)} has {name} with {value[error.start]!r}, half of a character, "
                "expected text; decode its bytes with the right encoding in the source"
            ) from None
        except (AttributeError, TypeError):
            raise DataError(
                f"{where}: row id {_id(ids, place)} has {name} of type {type(value).__name__}, expected "
                f"{'str' if column.kind == 'text' else 'bytes'}; convert it in the source, or correct its schema"
            ) from None
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return Ragged(values=np.frombuffer(b"".join(encoded), np.uint8), offsets=offsets)


def _check_text(name: str, ragged: Ragged, ids: np.ndarray, where: str) -> None:
    if _is_text(ragged):
        return
    for place, (first, last) in enumerate(pairwise(ragged.offsets.tolist())):
        try:
            str(ragged.values[first:last].data, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: row id {_id(ids, place)} has {name} that is not UTF-8 at byte {error.start}, "
                "expected text; decode its bytes with the right encoding in the source"
            ) from None


def _is_text(ragged: Ragged) -> bool:
    """Return whether all rows are UTF-8: their concatenation is, and no row begins within a character."""
    starts = ragged.offsets[:-1][np.diff(ragged.offsets) > 0]
    if (ragged.values[starts] >> 6 == 0b10).any():
        return False
    try:
        str(ragged.values.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _id(ids: np.ndarray, place: int) -> object:
    return ids[place] if place < len(ids) else f"(at index {place})"


def take_rows(ragged: Ragged, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of some rows [total, *shape], and the number of values in each row [n] int64."""
    starts, ends = ragged.offsets[rows], ragged.offsets[rows + 1]
    if len(rows) and (starts[1:] == ends[:-1]).all():
        return ragged.values[starts[0] : ends[-1]], ends - starts
    pieces = [ragged.values[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate([ragged.values[:0], *pieces]), ends - starts
