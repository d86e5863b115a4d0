"""Conversion of JSON values to columns of a schema, with a description of each unusable value."""

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
from shardline.data.sources.from_files import GROUP, UnusableError, text_id
from shardline.data.sources.source import UNKNOWN_LABEL
from shardline.data.splits import SPLIT_NAMES

_INT64 = np.iinfo(np.int64)
_FOR_NAN = 'write null; if the key is a column, add "?" to its type in source.columns'
_OF_PYTHON = ("'", "None", "True", "False", "nan", "inf", "(")
_EXACT = 2**53  # a float represents every whole number below this limit exactly


def read_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        UnusableError: The line is not JSON, or not an object.
    """
    expected = "expected one JSON object in each line"
    try:
        found = msgspec.json.decode(line)
    except UnicodeDecodeError as error:
        raise UnusableError(f"it is not UTF-8 ({error.reason}), {expected}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        if where := _not_finite(line):
            raise UnusableError(f"it is not JSON ({where}), {expected}", _FOR_NAN) from None
        reason = "nested too deeply" if isinstance(error, RecursionError) else _fault(line)
        raise UnusableError(f"it is not JSON ({reason}), {expected}") from None
    if not isinstance(found, dict):
        raise UnusableError(f"it {shown(found)}, {expected}")
    return found


def _fault(line: bytes) -> str:
    """Return where a line stops being JSON, with the text there."""
    text = line.decode()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip()
        if not rest or error.msg.startswith("Unterminated"):
            return "it ends too early"
        what = "unexpected text"
        if error.msg.startswith("Invalid control"):
            what = "a line break or tab that is not written as \\n or \\t before the text"
        elif rest.startswith(_OF_PYTHON):
            what = "a value in the form of Python, not of json.dumps,"
        return f"{what} at character {error.pos + 1}: {json.dumps(rest[:20])}"
    return "a text has half of a character, such as \\ud800"  # which Python's reader accepts


def _not_finite(line: bytes) -> str:
    """Return the place of a NaN or Infinity, which Python writes although JSON lacks it; else empty."""
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
    """Return the value of a key, or of `b` in the object under `a` for the key `a.b`; None if missing."""
    if key in found or "." not in key:
        return found.get(key)
    first, _, rest = key.partition(".")
    below = found.get(first)
    return value_at(below, rest) if isinstance(below, dict) else None


def shown(value: object) -> str:
    """Describe an unusable value, as the predicate of a message."""
    if value is None:
        return "is missing"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    if isinstance(value, dict):
        return "is an object"
    text = msgspec.json.encode(value).decode()
    return f"is {text if len(text) <= 40 else text[:37] + '...'}"


def reader_of(column: Column) -> Callable[[Any], Any]:
    """Return a function that converts a JSON value to a column's type, and raises `UnusableError` if it cannot.

    Bytes are decoded from base64 (RFC 4648). A missing value of an optional column is None.
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
    """Return a function that converts a value (None: it cannot), and a text for the expected values."""
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
    """Return a number in the range of a type, else None. Three times as fast as `_array`."""
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
    """Return the least and greatest number of a type, and whether it is a type of whole numbers."""
    if np.dtype(dtype).kind == "f":
        limits: Any = np.finfo(dtype)
        return float(limits.min), float(limits.max), False
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max), True


def _array(value: Any, column: Column) -> np.ndarray | None:
    """Return numbers as an array of the column's type, or None if a number is out of its range."""
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
    # an array of objects: a number has more than 64 bits
    if not is_fitting or given.dtype.kind == "O":
        return None
    if number.kind in "iu" and not _are_whole(given, np.iinfo(number)):
        return None
    with np.errstate(over="ignore"):
        found = given.astype(number)
    return found if number.kind != "f" or np.isfinite(found).all() else None


def _types(value: Any, dimensions: int) -> set[type]:
    """Return the types of the values in nested lists. NumPy would convert all numbers to text if one is text."""
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
    """Return the index of a label's class. Whole numbers and booleans are compared as text.

    Raises:
        UnusableError: The value is not a class.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if value is None or text not in places:
        known = ", ".join([*places][:5]) + (", ..." if len(places) > 5 else "")
        raise UnusableError(f"{shown(value)}, expected {UNKNOWN_LABEL} ({known})")
    return places[text]


def id_of(value: Any) -> int:
    """Return a row id: a whole number as it is, or the hash of a text.

    Raises:
        UnusableError: The value is neither, or empty.
    """
    if isinstance(value, int) and not isinstance(value, bool) and _INT64.min <= value <= _INT64.max:
        return value
    if isinstance(value, str) and value:
        return text_id(value)
    raise UnusableError(f"{shown(value)}, expected a whole number (int64) or text")


def group_of(value: Any) -> str:
    """Return the name of a row's group.

    Raises:
        UnusableError: The value is neither a whole number nor text.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise UnusableError(f"{shown(value)}, expected {GROUP}")
    return str(value).strip()


def time_of(value: Any) -> float:
    """Return the time of a row: a number, or an ISO 8601 date in nanoseconds.

    Raises:
        UnusableError: The value is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        date: Any = np.datetime64(value if isinstance(value, str) else "", "ns")
    except ValueError:
        date = np.datetime64("NaT")
    if np.isnat(date):
        raise UnusableError(f"{shown(value)}, expected a number or a date such as 2024-01-31")
    return float(date.astype(np.int64))


def split_of(value: Any) -> int:
    """Return the split that a value names, as an index into SPLITS.

    Raises:
        UnusableError: The value is not the name of a split.
    """
    name = value.strip().lower() if isinstance(value, str) else ""
    if name not in SPLIT_NAMES:
        expected = "expected train, validation (val, valid, dev) or test"
        raise UnusableError(f"{shown(value)}, {expected}")
    return SPLIT_NAMES[name]
