"""Records: immutable, by name, and read with the place of what does not fit."""

from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins

from shardline.core.errors import DataError


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
