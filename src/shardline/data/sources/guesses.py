"""Columns of a table whose meaning would be a guess: an index without a name, text that may be numbers."""

import re
from collections.abc import Sequence

import pyarrow as pa

from shardline.data.sources import columns

_INDEX = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
_NUMBER = r"[+-]?(?:\d{1,3}(?:[.,'\s]\d{3})+|\d+)?(?:[.,]\d+)?(?:[eE][+-]?\d+)?"
_MARKED = re.compile(rf"(?=.*\d)[$€£¥]?\s?{_NUMBER}\s?[%€$£¥]?")
_COMMA = re.compile(r"\s*[+-]?\d*(?:,\d+)?(?:[eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?\d{0,3}(?:,\d{3})*\s*")
_PLAIN = re.compile(r"\s*[+-]?\d*\.?\d+(?:[eE][+-]?\d+)?\s*")
_ROWS = 1000


def is_index(name: str) -> bool:
    """Return whether a column is called as pandas calls the index of a data frame."""
    return _INDEX.fullmatch(name) is not None


def index_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that pandas wrote an index to."""
    noted = schema.pandas_metadata if schema.metadata else None
    named = (noted or {}).get("index_columns", ())
    return [name for name in named if isinstance(name, str)]


def is_marked(text: str) -> bool:
    """Return whether a text is a number, plain or as other programs write it: 1,5 or 1,000.5 or 5% or $5."""
    return _MARKED.fullmatch(text.strip()) is not None


def as_numbers(column: pa.Array) -> list[str]:
    """Return the first texts of a column if all of them may be numbers; else none."""
    texts = columns.without_missing(column[:_ROWS]).drop_null().to_pylist()
    return texts if all(map(is_marked, texts)) else []


def remedy_of(texts: Sequence[str], decimal: str) -> str:
    """Return how texts become numbers; empty where they are none.

    Args:
        decimal: mark of decimals that the source takes; empty where text is no number for it.
    """
    if not all(map(is_marked, texts)):
        return ""
    # 1,000 may be a thousand
    is_decimal = any(_COMMA.fullmatch(one) and not _THOUSANDS.fullmatch(one) for one in texts)
    if decimal == "." and is_decimal and all(map(_COMMA.fullmatch, texts)):
        return 'set source.decimal: ","'
    if not decimal and all(map(_PLAIN.fullmatch, texts)):
        return "convert it to a type of numbers"
    return f"write plain numbers, such as 1000{decimal or '.'}5"
