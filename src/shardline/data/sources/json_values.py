"""Values of JSON as those of a schema's columns: each that is none is described, so that it can be named."""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from shardline.data.columns import Column
from shardline.data.sources.from_files import UnusableError, text_id
from shardline.data.splits import SPLIT_NAMES

_INT64 = np.iinfo(np.int64)
_FOR_NAN = 'write null, and a type with "?" in source.columns where that is a column'
_EXACT = 2**53  # whole numbers below are exact where they stand among fractions


def read_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        UnusableError: it is another value, or no JSON.
    """
    expected = "expected one JSON object in each line"
    try:
        found = msgspec.json.decode(line)
    except UnicodeDecodeError as error:
        raise UnusableError(f"it is not UTF-8 ({error.reason}), {expected}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        if where := _not_finite(line):
            raise UnusableError(f"it is not JSON ({where}), {expected}", _FOR_NAN) from None
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UnusableError(f"it is not JSON ({reason}), {expected}") from None
    if not isinstance(found, dict):
        raise UnusableError(f"it {shown(found)}, {expected}")
    return found


def _not_finite(line: bytes) -> str:
    """Return where a line holds a NaN or Infinity that Python writes and JSON does not know; empty where none is."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    places: list[tuple[str, Any]] = [("", found)]
    for place, value in places:
        if isinstance(value, float) and not math.isfinite(value):
            return f"{place or 'it'} is {json.dumps(value)}"
        if isinstance(value, list):
            places += [(place, one) for one in value]
        if isinstance(value, dict):
            places += [(f"{place}.{key}".lstrip("."), one) for key, one in value.items()]
    return ""


def value_at(found: Mapping[str, Any], key: str) -> Any:
    """Return what an object has under a key, `a.b` of the object under `a`; None where there is nothing."""
    if key in found or "." not in key:
        return found.get(key)
    first, _, rest = key.partition(".")
    below = found.get(first)
    return value_at(below, rest) if isinstance(below, dict) else None


def shown(value: object) -> str:
    """Describe a value that cannot be used, as messages go on behind its name."""
    if value is None:
        return "is missing"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    if isinstance(value, dict):
        return "is an object"
    text = msgspec.json.encode(value).decode()
    return f"is {text if len(text) <= 40 else text[:37] + '...'}"


def reader_of(column: Column) -> Callable[[Any], Any]:
    """Return what turns a value into one of a column: an array or number, bytes or text, None for none.

    Bytes are read from base64, as RFC 4648 has it. The reader raises `UnusableError`.
    """
    read, expected = _reader_of(column)

    def value_of(value: Any) -> Any:
        if value is None and column.optional:
            return None
        found = None if value is None else read(value)
        if found is None:
            raise UnusableError(f"{shown(value)}, expected {expected}")
        return found

    return value_of


def _reader_of(column: Column) -> tuple[Callable[[Any], Any], str]:
    """Return what reads a value of a column, or gives None; and what is expected of values."""
    if column.kind == "text":
        return _text, "text"
    if column.kind == "bytes":
        return _bytes, "bytes in base64"
    of = "true or false" if column.dtype == "bool" else f"numbers ({column.dtype})"
    if not (column.varies or column.shape):
        one = of if column.dtype == "bool" else f"a number ({column.dtype})"
        return lambda value: _number(value, column.dtype), one
    shape = ["*"] * column.varies + [*map(str, column.shape)]
    return lambda value: _array(value, column), f"a list of {of} of shape [{','.join(shape)}]"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _bytes(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def _number(value: Any, dtype: str) -> int | float | bool | None:
    """Return a number that a type can hold; three times as fast as an array of it."""
    if dtype == "bool":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high, is_whole = _limits(dtype)
    if is_whole and isinstance(value, float):
        if not value.is_integer() or abs(value) >= _EXACT:
            return None
        value = int(value)
    if not low <= value <= high:
        return None
    return value if is_whole else float(value)


@cache
def _limits(dtype: str) -> tuple[int | float, int | float, bool]:
    """Return the least and the greatest number of a type, and whether it holds whole ones alone."""
    if np.dtype(dtype).kind == "f":
        limits: Any = np.finfo(dtype)
        return float(limits.min), float(limits.max), False
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max), True


def _array(value: Any, column: Column) -> np.ndarray | None:
    """Return numbers as an array of the column's type if each has its value there, rounded if that is a float."""
    number, allowed = np.dtype(column.dtype), {bool} if column.dtype == "bool" else {int, float}
    dimensions = column.varies + len(column.shape)
    if not _types(value, dimensions) <= allowed:
        return None
    try:
        given = np.asarray(value)
    except ValueError:  # rows of several lengths
        return None
    if column.varies and given.shape == (0,):
        return np.zeros((0, *column.shape), number)
    is_fitting = given.ndim == dimensions and given.shape[column.varies :] == column.shape
    # of objects, where a number has more than 64 bits
    if not is_fitting or given.dtype.kind == "O":
        return None
    if number.kind in "iu" and not _are_whole(given, np.iinfo(number)):
        return None
    with np.errstate(over="ignore"):
        found = given.astype(number)
    return found if number.kind != "f" or np.isfinite(found).all() else None


def _types(value: Any, dimensions: int) -> set[type]:
    """Return the types of the values of a list of lists; NumPy would make texts of all where one is text."""
    if not dimensions or not isinstance(value, list):
        return {type(value)}
    if dimensions == 1:
        return set(map(type, value))
    return set().union(*(_types(item, dimensions - 1) for item in value))


def _are_whole(given: np.ndarray, limits: Any) -> bool:
    if not given.size:
        return True
    if given.dtype.kind == "f" and not ((given == given.round()) & (abs(given) < _EXACT)).all():
        return False
    return bool(given.min() >= limits.min and given.max() <= limits.max)


def class_of(value: Any, places: Mapping[str, int]) -> int:
    """Return a label's place among the classes; whole numbers and truth values stand for their text.

    Raises:
        UnusableError: it is none of them.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if value is None or text not in places:
        known = ", ".join([*places][:5]) + (", ..." if len(places) > 5 else "")
        raise UnusableError(f"{shown(value)}, expected one of source.classes ({known})")
    return places[text]


def id_of(value: Any) -> int:
    """Return a row's id: a whole number, or that of a text.

    Raises:
        UnusableError: it is neither, or empty.
    """
    if isinstance(value, int) and not isinstance(value, bool) and _INT64.min <= value <= _INT64.max:
        return value
    if isinstance(value, str) and value:
        return text_id(value)
    raise UnusableError(f"{shown(value)}, expected a whole number (int64) or text")


def split_of(value: Any) -> int:
    """Return the split that a value names, as an index into SPLITS.

    Raises:
        UnusableError: it names none.
    """
    name = value.strip().lower() if isinstance(value, str) else ""
    if name not in SPLIT_NAMES:
        expected = "expected train, validation (val, valid, dev) or test"
        raise UnusableError(f"{shown(value)}, {expected}")
    return SPLIT_NAMES[name]
