"""Source of CSV files. Shards are byte ranges, so a job reads only its own part."""

import csv
import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from shardline.core.errors import DataError
from shardline.data.sources import arrow_columns, typed
from shardline.data.sources.lines import (
    Lines,
    TextFiles,
    ends_by_return,
    not_utf8,
    refuse_wide,
)
from shardline.data.sources.packed import open_text, read_line
from shardline.data.sources.table_columns import Block
from shardline.data.sources.tabular import Tabular

_GUESS_BYTES = 2**20  # column types are guessed from these bytes


class Csv(Tabular):
    """Rows of UTF-8 CSV files that have the same header.

    A shard is a byte range of all files. A line belongs to the shard in which its first byte
    is. Without an id column, a row's id is made from its file and the offset of its line.

    Args:
        delimiter: Separator of the fields.
        decimal: Decimal mark: a point or a comma.
    """

    empty_is_missing = True

    def __init__(
        self, *, delimiter: str = ",", decimal: Literal[".", ","] = ".", **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.delimiter, self.decimal = delimiter, decimal

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the first file. Their types are guessed from its first MiB."""
        return self._first_rows.schema

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers. A column of numbers and text is an error."""
        for name, chunks in zip(self.columns.names, self._first_rows.columns, strict=True):
            column = chunks.combine_chunks()
            if name not in self.keys and arrow_columns.is_text(column.type):
                plain = arrow_columns.with_point(column) if self.decimal == "," else column
                _, bad = arrow_columns.numbers(plain, "float64")
                if not bad.all():
                    raise DataError(
                        f"{self.table_name}: column {name} contains numbers and text such as "
                        f"{column[int(bad.argmax())]}, expected only one of them; list the features in source.features"
                    )
        return super().numeric_columns()

    def first_texts(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the values of the first rows."""
        return {name: self._first_rows.column(name).combine_chunks() for name in names}

    @property
    def hint_of_columns(self) -> str:
        """Remedy that names another delimiter, if the header has one column and contains this delimiter."""
        names = self._headers[0][0]
        other = next((mark for mark in ";\t|," if len(names) == 1 and mark in names[0]), "")
        return f"set source.delimiter: {json.dumps(other)}" if other else ""

    @property
    def inferred(self) -> dict[str, Any]:
        """The delimiter, and facts inferred for every table."""
        return {"delimiter": self.delimiter} | super().inferred

    def check_feature(self, name: str, *, alone: bool) -> None:
        """Accept every column: types are a guess here, and each value is checked when it is read."""

    @cached_property
    def _first_rows(self) -> pa.Table:
        path, (names, start) = self.files[0], self._headers[0]
        content = b"".join(
            line
            for line in _rows_at(path, start).splitlines(keepends=True)
            if not self._is_header(line)
        )
        if not content.strip():
            self._check_rows()
            return pa.table({name: pa.nulls(0) for name in names})
        ragged: list[pcsv.InvalidRow] = []
        try:
            read = pcsv.ReadOptions(column_names=names, block_size=len(content) + 1)
            parse = self._parse_options(ragged)
            convert = pcsv.ConvertOptions(decimal_point=self.decimal)
            rows = pcsv.read_csv(io.BytesIO(content), read, parse, convert)
        except pa.ArrowInvalid as error:
            raise _unreadable(path, str(error)) from None
        if ragged and not rows.num_rows:
            raise _no_row_fits(path, names, ragged[0], content, self.delimiter)
        return rows

    def _check_rows(self) -> None:
        """Reject files that contain only headers."""
        starts = [start for _, start in self._headers]
        if not any(_rows_at(*one).strip() for one in zip(self.files, starts, strict=True)):
            others = f", as do {len(starts) - 1} other files" if starts[1:] else ""
            raise DataError(
                f"{self.table_name}: ends after line 1, the header{others}, expected rows below the header; add rows, "
                "or remove the dataset"
            )

    @cached_property
    def _header_may_be_row(self) -> bool:
        """Whether the header could also be a row, since the column names are valid values."""
        names = arrow_columns.numbers(pa.array(self.features), self.dtype)
        if self.task == "classification":
            return not names[1].any() and self.label in self.classes
        return (
            not names[1].any()
            and not arrow_columns.numbers(pa.array(self.labels), "float32")[1].any()
        )

    @cached_property
    def _headers(self) -> list[tuple[list[str], int]]:
        """Column names of each file, and the offset of its first row."""
        found = [_read_header(path, self.delimiter) for path in self.files]
        first = found[0][0]
        for path, (names, _) in zip(self.files, found, strict=True):
            if names != first:
                raise DataError(
                    f"{path}: its header has {_difference(names, first)} {self.files[0]}; write the same header in "
                    "all files, or make two datasets of them"
                )
        return found

    @cached_property
    def _texts(self) -> TextFiles:
        return TextFiles(self.files, [start for _, start in self._headers])

    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the lines that begin in the shard's range of bytes, 8 MiB at a time."""
        for index, first, last in self._texts.slices(shard, self.num_shards):
            for lines in self._texts.lines(index, first, last):
                yield self._block(shard, index, lines)

    def _block(self, shard: int, index: int, lines: Lines) -> Block:
        _refuse_line_breaks(lines)
        ragged: list[pcsv.InvalidRow] = []
        rows = self._parse(lines, ragged)
        if rows.num_rows + len(ragged) != len(lines.starts):
            raise DataError(
                f"{lines.where(0)} and after: {rows.num_rows + len(ragged)} rows in {len(lines.starts)} lines, "
                "expected one row per line; remove line breaks from the fields"
            )
        for row in ragged:
            found = f"the number of fields is {row.actual_columns}, expected {row.expected_columns}"
            self.leave_out(shard, f"{lines.where(row.number - 1)}: {found}")
        kept = np.delete(np.arange(len(lines.starts)), [row.number - 1 for row in ragged])
        if again := [] if self._header_may_be_row else self._headers_in(lines):
            for row in again:
                found = "the header is repeated here, as in joined files, expected a row"
                self.leave_out(shard, f"{lines.where(row)}: {found}")
            is_row = ~np.isin(kept, again)
            rows, kept = rows.filter(pa.array(is_row)), kept[is_row]
        return Block(
            file=index,
            rows=rows,
            positions=lines.place + lines.starts[kept],
            where=lambda i: lines.where(kept[i]),
        )

    def _headers_in(self, lines: Lines) -> list[int]:
        """Return the indices of lines that repeat the header."""
        if self._header_line not in lines.content:
            return []
        return [row for row, line in enumerate(lines.rows()) if self._is_header(line)]

    def _is_header(self, line: bytes) -> bool:
        return line.rstrip(b"\r\n").removeprefix(BOM_UTF8) == self._header_line

    @cached_property
    def _header_line(self) -> bytes:
        with open_text(self.files[0]) as file:
            return read_line(file, self.files[0]).rstrip(b"\r\n").removeprefix(BOM_UTF8)

    def _parse(self, lines: Lines, ragged: list[pcsv.InvalidRow]) -> pa.Table:
        # the reader numbers rows only if it uses one thread
        read = pcsv.ReadOptions(
            column_names=self._headers[0][0],
            use_threads=False,
            block_size=len(lines.content) + 1,
        )
        parse = self._parse_options(ragged)
        for types in (self._types, dict.fromkeys(self.used, pa.string())):
            convert = pcsv.ConvertOptions(
                column_types=types, include_columns=self.used, decimal_point=self.decimal
            )
            ragged.clear()
            try:
                return pcsv.read_csv(io.BytesIO(lines.content), read, parse, convert)
            except pa.ArrowInvalid as error:
                reason = str(error)  # read as text, a bad value can be reported with its row
        _refuse_other_encodings(lines)
        raise _unreadable(lines.path, reason)

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        types = dict.fromkeys(self.used, pa.string())
        types |= dict.fromkeys(self.features, pa.from_numpy_dtype(np.dtype(self.dtype)))
        types |= {self.in_file(name): typed.read_as(column) for name, column in self.named.items()}
        if self.task == "regression" and self.has_labels:
            types |= dict.fromkeys(self.labels, pa.float32())
        if self.weight and not self.lacks_weight:
            types[self.weight] = pa.float32()
        if self.id_column and pa.types.is_integer(self.columns.field(self.id_column).type):
            types[self.id_column] = pa.int64()
        return types

    def _parse_options(self, ragged: list[pcsv.InvalidRow]) -> pcsv.ParseOptions:
        def keep(row: pcsv.InvalidRow) -> str:
            ragged.append(row)
            return "skip"

        return pcsv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=keep)


def _rows_at(path: Path, start: int) -> bytes:
    """Return about 1 MiB of lines after a header."""
    with open_text(path) as file:
        file.seek(start)
        return file.read(_GUESS_BYTES) + read_line(file, path)


def _read_header(path: Path, delimiter: str) -> tuple[list[str], int]:
    with open_text(path) as file:
        line = read_line(file, path)
    refuse_wide(path, line)
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


def _no_row_fits(
    path: Path, names: list[str], row: pcsv.InvalidRow, content: bytes, delimiter: str
) -> DataError:
    """Return the error for a file in which no row has as many fields as the header."""
    remedy = "write one name per column in line 1"
    ends = content.split(b"\n", 1)[0].rstrip(b"\r").endswith(delimiter.encode())
    if ends and row.actual_columns == len(names) + 1:
        remedy = f'add a "{delimiter}" at the end of line 1 as well, or remove it at the ends of the rows'
    elif not names[-1].strip() and row.actual_columns == len(names) - 1:
        remedy = f'remove the "{delimiter}" at the end of line 1'
    return DataError(
        f"{path}: all rows have {row.actual_columns} fields, expected {len(names)} as in line 1, the header; {remedy}"
    )


def _refuse_line_breaks(lines: Lines) -> None:
    """Reject fields with line breaks: a shard could not start to read within such a field."""
    if b'"' not in lines.content or not len(lines.starts):
        return
    is_quote = np.frombuffer(lines.content, dtype=np.uint8) == ord('"')
    odd = np.flatnonzero(np.add.reduceat(is_quote, lines.starts, dtype=np.int64) % 2)
    if len(odd):
        raise DataError(
            f"{lines.where(odd[0])}: a quote is not closed in its line, expected fields without line "
            "breaks; remove the line breaks, or convert the file to Parquet"
        )


def _refuse_other_encodings(lines: Lines) -> None:
    try:
        lines.content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(lines.where_byte(error.start), lines.content[error.start]) from None


def _unreadable(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path}: cannot be read as CSV ({' '.join(reason.split())[:200]}); fix it, or remove it from source.files"
    )


def _difference(names: list[str], first: list[str]) -> str:
    if missing := [name for name in first if name not in names]:
        return f"no column {missing[0]}, unlike"
    if surplus := [name for name in names if name not in first]:
        return f"an additional column {surplus[0]}, unlike"
    return "another order of columns than"
