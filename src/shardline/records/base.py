"""Immutable records, and functions that encode and decode them."""

from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins

from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import seal


class Record(Struct, frozen=True, kw_only=True):
    """Content of a JSON file, or a part of it."""


_Record = TypeVar("_Record", bound=Record)


def encode(record: Record) -> dict[str, Any]:
    """Return a record as plain values for JSON."""
    document: dict[str, Any] = to_builtins(record)
    return document


def decode(document: object, kind: type[_Record], *, where: Path | str, remedy: str) -> _Record:
    """Convert plain values to a record.

    Args:
        where: File that contains the values, for the message.

    Raises:
        DataError: The values do not fit. The message names the field and ends with the remedy.
    """
    try:
        return convert(document, kind)
    except (ValidationError, UnicodeEncodeError) as error:  # half of a character
        raise DataError(
            f"{where} has not the form that the pipeline writes: {error}; {remedy}"
        ) from None


def read_record(path: Path, kind: type[_Record], *, remedy: str) -> _Record:
    """Read the record in a JSON file.

    Raises:
        DataError: The file cannot be read or does not fit. The message ends with the remedy.
    """
    return decode(read_object(path, remedy=remedy), kind, where=path, remedy=remedy)


def sealed(record: Record) -> dict[str, Any]:
    """Return a record as plain values with a seal."""
    return seal(encode(record))
