"""Headers of CSV files, their first rows, and errors of files that cannot be parsed."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv

from shardline.core.errors import DataError
from shardline.data.sources.lines import Lines, ends_by_return, not_utf8, refuse_other_content
from shardline.data.sources.packed import open_text, read_line

_GUESS_BYTES = 2**20  # column types are guessed from these bytes


def first_rows_of(path: Path, start: int) -> bytes:
    """Return about 1 MiB of lines after a header."""
    with open_text(path) as file:
        file.seek(start)
        return file.read(_GUESS_BYTES) + read_line(file, path)


def read_header(path: Path, delimiter: str) -> tuple[list[str], int]:
    """Return the column names of a file, and the offset of its first row.

    Raises:
        DataError: The file does not begin with a line of names. The message names it.
    """
    with open_text(path) as file:
        line = read_line(file, path)
    refuse_other_content(path, line[:512], "CSV")
    if b"\r" in line.rstrip(b"\r\n"):
        raise ends_by_return(path)
    if not line.strip():
        raise DataError(
            f"{path}: {'begins with an empty line' if line else 'is empty'}, expected a line of column names; "
            "add a header, or remove the file from source.files"
        )
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(f"{path}, line 1", line[error.start]) from None
    if text.count('"') % 2:
        raise DataError(
            f"{path}: its header has a quote that is not closed, expected names in one line; close the quote"
        )
    return next(csv.reader([text], delimiter=delimiter)), len(line)


def no_row_fits(
    path: Path, names: list[str], row: pcsv.InvalidRow, content: bytes, delimiter: str
) -> DataError:
    """Return the error for a file in which no row has as many fields as the header."""
    remedy, first = "write one name per column in line 1", names[0].strip().lower()
    mark = json.dumps(delimiter)
    ends = content.split(b"\n", 1)[0].rstrip(b"\r").endswith(delimiter.encode())
    if ends and row.actual_columns == len(names) + 1:
        remedy = f"add a {mark} at the end of line 1 as well, or remove it at the ends of the rows"
    elif not names[-1].strip() and row.actual_columns == len(names) - 1:
        remedy = f"remove the {mark} at the end of line 1"
    elif first.startswith(("sep=", "#")):
        remedy = "remove line 1, so that the file begins with the names of the columns"
    elif row.actual_columns == len(names) + 1:
        remedy += ", also of the names of rows that R writes first (or write the file with row.names=FALSE)"
    return DataError(
        f"{path}: all rows have {row.actual_columns} fields, expected {len(names)} as in line 1, the header; {remedy}"
    )


def difference_of(names: list[str], first: list[str]) -> str:
    """Describe how a header differs from that of the first file."""
    if missing := [name for name in first if name not in names]:
        return f"no column {missing[0]}, unlike"
    if surplus := [name for name in names if name not in first]:
        return f"an additional column {surplus[0]}, unlike"
    return "another order of columns than"


def refuse_other_encodings(lines: Lines) -> None:
    """Reject lines that are not UTF-8.

    Raises:
        DataError: There is such a line. The message names it and the byte.
    """
    try:
        lines.content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(lines.where_byte(error.start), lines.content[error.start]) from None


def as_latin(column: pa.Array) -> tuple[pa.Array, bytes]:
    """Return a column of bytes as text in Latin-1, and the first byte that is not UTF-8."""
    values, foreign = column.to_pylist(), b""
    for value in values:
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            foreign = foreign or value[error.start : error.start + 1]
    return pa.array([one and one.decode("latin-1") for one in values], pa.string()), foreign


def unreadable(path: Path, reason: str) -> DataError:
    """Return the error for a file that the reader cannot parse."""
    return DataError(
        f"{path}: cannot be read as CSV ({' '.join(reason.split())[:200]}); fix it, or remove it from source.files"
    )
