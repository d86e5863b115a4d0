"""CSV files, cut into shards by byte ranges, so that no job reads more than its own part."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from shardline.core.errors import DataError
from shardline.data.sources import columns
from shardline.data.sources.base import shard_slices
from shardline.data.sources.tabular import Block, Tabular

_BLOCK_BYTES = 8 * 2**20
_GUESS_BYTES = 2**20  # from whose lines the columns' types are guessed


@dataclass(frozen=True)
class _Lines:
    """Whole lines of a file.

    Attributes:
        path: the file.
        place: where in it they begin.
        content: their bytes.
        starts: where in `content` each line begins that is not empty [N].
    """

    path: Path
    place: int
    content: bytes
    starts: np.ndarray

    def where(self, line: int) -> str:
        """Say where a line stands."""
        return self.where_byte(int(self.starts[line]))

    def where_byte(self, byte: int) -> str:
        """Say in which line a byte of the content stands."""
        number = _num_lines(self.path, self.place) + self.content.count(b"\n", 0, byte) + 1
        return f"{self.path}, line {number}"


class Csv(Tabular):
    """Rows of UTF-8 text with a header, the same in every file.

    A shard holds the lines that begin in its range of all files' bytes. A row
    without an id is known by its file and by the byte that its line begins at.

    Args:
        delimiter: what separates the fields.
    """

    def __init__(self, *, delimiter: str = ",", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.delimiter = delimiter

    @property
    def table_name(self) -> str:
        """The first file, which every other must agree with."""
        return str(self.files[0])

    @cached_property
    def columns(self) -> pa.Schema:
        """The first file's columns, their types guessed from its first MiB."""
        return self._first_rows.schema

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers; one that holds text too may be either."""
        for name, chunks in zip(self.columns.names, self._first_rows.columns, strict=True):
            column = chunks.combine_chunks()
            if name not in self.keys and columns.is_text(column.type):
                _, bad = columns.numbers(column, "float64")
                if not bad.all():
                    raise DataError(
                        f"{self.table_name}: column {name} holds numbers and text such as {column[int(bad.argmax())]}, "
                        "so which columns are features is unknown; list them in source.features"
                    )
        return super().numeric_columns()

    def check_feature(self, name: str, *, alone: bool) -> None:
        """Nothing: the types are a guess, and each value is looked at when it is read."""

    @cached_property
    def _first_rows(self) -> pa.Table:
        path, (names, start) = self.files[0], self._headers[0]
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(_GUESS_BYTES) + file.readline()
        if not content.strip():
            return pa.table({name: pa.nulls(0) for name in names})
        try:
            read = pcsv.ReadOptions(column_names=names, block_size=len(content) + 1)
            parse = self._parse_options(lambda row: "skip")
            return pcsv.read_csv(io.BytesIO(content), read, parse)
        except pa.ArrowInvalid as error:
            raise _unreadable(path, str(error)) from None

    @cached_property
    def _headers(self) -> list[tuple[list[str], int]]:
        """Column names of each file, and where its first row begins."""
        found = [_read_header(path, self.delimiter) for path in self.files]
        first = found[0][0]
        for path, (names, _) in zip(self.files, found, strict=True):
            if names != first:
                raise DataError(
                    f"{path}: its header has {_difference(names, first)} {self.files[0]}; give all files one "
                    "header, or make two datasets of them"
                )
        return found

    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the lines that begin in the shard's range of bytes, 8 MiB at a time."""
        sizes = [
            path.stat().st_size - start
            for path, (_, start) in zip(self.files, self._headers, strict=True)
        ]
        for index, first, last in shard_slices(sizes, shard, self.num_shards):
            header = self._headers[index][1]
            for lines in _read_lines(self.files[index], header, header + first, header + last):
                yield self._block(shard, index, lines)

    def _block(self, shard: int, index: int, lines: _Lines) -> Block:
        _refuse_line_breaks(lines)
        ragged: list[pcsv.InvalidRow] = []
        rows = self._parse(lines, ragged)
        if rows.num_rows + len(ragged) != len(lines.starts):
            raise DataError(
                f"{lines.where(0)} and after: {rows.num_rows + len(ragged)} rows in {len(lines.starts)} lines, "
                "expected a row in each; take line breaks out of the fields"
            )
        for row in ragged:
            found = f"the number of fields is {row.actual_columns}, expected {row.expected_columns}"
            self.leave_out(shard, f"{lines.where(row.number - 1)}: {found}")
        kept = np.delete(np.arange(len(lines.starts)), [row.number - 1 for row in ragged])
        return Block(
            file=index,
            rows=rows,
            positions=lines.place + lines.starts[kept],
            where=lambda i: lines.where(kept[i]),
        )

    def _parse(self, lines: _Lines, ragged: list[pcsv.InvalidRow]) -> pa.Table:
        def keep(row: pcsv.InvalidRow) -> str:
            ragged.append(row)
            return "skip"

        # rows are numbered only where one thread reads them
        read = pcsv.ReadOptions(
            column_names=self._headers[0][0],
            use_threads=False,
            block_size=len(lines.content) + 1,
        )
        parse = self._parse_options(keep)
        for types in (self._types, dict.fromkeys(self.used, pa.string())):
            convert = pcsv.ConvertOptions(column_types=types, include_columns=self.used)
            ragged.clear()
            try:
                return pcsv.read_csv(io.BytesIO(lines.content), read, parse, convert)
            except pa.ArrowInvalid as error:
                reason = str(error)  # as text, what is no number can be named by its row
        _refuse_other_encodings(lines)
        raise _unreadable(lines.path, reason)

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        types = dict.fromkeys(self.used, pa.string())
        types |= dict.fromkeys(self.features, pa.from_numpy_dtype(np.dtype(self.dtype)))
        if self.task == "regression":
            types[self.label] = pa.float32()
        if self.id_column and pa.types.is_integer(self.columns.field(self.id_column).type):
            types[self.id_column] = pa.int64()
        return types

    def _parse_options(self, handler: Any) -> pcsv.ParseOptions:
        return pcsv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=handler)


def _read_header(path: Path, delimiter: str) -> tuple[list[str], int]:
    with path.open("rb") as file:
        line = file.readline()
    if not line.strip():
        raise DataError(
            f"{path}: {'begins with an empty line' if line else 'is empty'}, expected a line of column names; "
            "add one, or drop the file from source.files"
        )
    if line.startswith((b"\x1f\x8b", b"PK", b"\x28\xb5\x2f\xfd", b"BZh")):
        raise DataError(
            f"{path}: is compressed, and ranges of bytes are read from it; unpack it, or convert it to Parquet"
        )
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(f"{path}, line 1", line[error.start]) from None
    if text.count('"') % 2:
        raise DataError(
            f"{path}: its header has a quote that is not closed, expected names in one line; fix it"
        )
    return next(csv.reader([text], delimiter=delimiter)), len(line)


def _read_lines(path: Path, header: int, first: int, last: int) -> Iterator[_Lines]:
    """Yield the lines that begin at a byte from `first` to before `last`."""
    with path.open("rb") as file:
        if first > header:
            file.seek(first - 1)
            file.readline()  # the rest of a line that began earlier
        else:
            file.seek(first)
        while (place := file.tell()) < last:
            content = _whole_lines(file, min(_BLOCK_BYTES, last - place))
            starts = _line_starts(content)
            if len(starts):
                yield _Lines(path, place, content, starts)


def _whole_lines(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    return content if content.endswith(b"\n") else content + file.readline()


def _line_starts(content: bytes) -> np.ndarray:
    """Return where the lines that are not empty begin [N] int64."""
    data = np.frombuffer(content, dtype=np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    # an empty line may still hold a carriage return
    lengths -= (lengths > 0) & (data[ends - 1] == ord("\r"))
    kept: np.ndarray = starts[lengths > 0]
    return kept


def _refuse_line_breaks(lines: _Lines) -> None:
    """Refuse a field that continues in the next line: nobody could start reading in between."""
    if b'"' not in lines.content or not len(lines.starts):
        return
    is_quote = np.frombuffer(lines.content, dtype=np.uint8) == ord('"')
    odd = np.flatnonzero(np.add.reduceat(is_quote, lines.starts, dtype=np.int64) % 2)
    if len(odd):
        raise DataError(
            f"{lines.where(odd[0])}: a quote that is not closed in its line, expected fields without line "
            "breaks; take them out, or convert the file to Parquet"
        )


def _refuse_other_encodings(lines: _Lines) -> None:
    try:
        lines.content.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(lines.where_byte(error.start), lines.content[error.start]) from None


def _num_lines(path: Path, place: int) -> int:
    """Count the lines before a byte of a file, which only a message needs."""
    number = 0
    with path.open("rb") as file:
        while content := file.read(min(_BLOCK_BYTES, place)):
            number, place = number + content.count(b"\n"), place - len(content)
    return number


def _not_utf8(where: str, byte: int) -> DataError:
    return DataError(f"{where}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8")


def _unreadable(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path}: cannot be read as CSV ({' '.join(reason.split())[:200]}); fix it, or drop it from source.files"
    )


def _difference(names: list[str], first: list[str]) -> str:
    if missing := [name for name in first if name not in names]:
        return f"no column {missing[0]}, unlike that of"
    if surplus := [name for name in names if name not in first]:
        return f"a further column {surplus[0]}, unlike that of"
    return "its columns in another order than"
