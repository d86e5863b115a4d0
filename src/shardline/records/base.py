"""Records: immutable, by name, and read with the place of what does not fit."""

from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins

from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import seal


class Record(Struct, frozen=True, kw_only=True):
    """What a file holds, or a part of it."""


_Record = TypeVar("_Record", bound=Record)


def encode(record: Record) -> dict[str, Any]:
    """Return a record as plain values, for JSON."""
    document: dict[str, Any] = to_builtins(record)
    return document


def decode(document: object, kind: type[_Record], *, where: Path | str, remedy: str) -> _Record:
    """Return the record that plain values are.

    Args:
        where: what holds the values, for the message.

    Raises:
        DataError: they are no such record; names the place in it, and ends with the remedy.
    """
    try:
        return convert(document, kind)
    except (ValidationError, UnicodeEncodeError) as error:  # half of a character
        raise DataError(
            f"{where} has not the form that the pipeline writes: {error}; {remedy}"
        ) from None


def read_record(path: Path, kind: type[_Record], *, remedy: str) -> _Record:
    """Return the record that a JSON file holds.

    Raises:
        DataError: it cannot be read, or has another form; ends with the remedy.
    """
    return decode(read_object(path, remedy=remedy), kind, where=path, remedy=remedy)


def sealed(record: Record) -> dict[str, Any]:
    """Return a record as plain values with their seal."""
    return seal(encode(record))
