"""Source of CSV files. Shards are byte ranges, so a job reads only its own part."""

import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.sources import arrow_columns, prepared_columns, typed
from shardline.data.sources.csv_header import (
    as_latin,
    difference_of,
    first_rows_of,
    no_row_fits,
    read_header,
    refuse_other_encodings,
    unreadable,
)
from shardline.data.sources.lines import Lines, TextFiles, not_utf8
from shardline.data.sources.notation import Notation, remedy_of
from shardline.data.sources.packed import open_text, read_line
from shardline.data.sources.quoted import QuotedLines, refuse_line_breaks
from shardline.data.sources.table_columns import Block
from shardline.data.sources.tabular import Tabular


class Csv(Tabular):
    """Rows of UTF-8 CSV files that have the same header.

    A shard is a byte range of all files. A line belongs to the shard in which its first byte
    is. Without an id column, a row's id is made from its file and the offset of its line.

    Args:
        delimiter: Separator of the fields.
        decimal: Decimal mark: a point or a comma.
        thousands: Mark between groups of three digits; empty for none.
        percent: Columns of percentages: `5%` and `5` become 0.05.
        missing: Texts that mean a missing value, besides an empty one.
        line_breaks: Whether quoted fields may contain line breaks.
    """

    empty_is_missing = True

    def __init__(
        self, *, delimiter: str = ",", decimal: Literal[".", ","] = ".", thousands: str = "",
        percent: Sequence[str] = (), missing: Sequence[str] = (), line_breaks: bool = False, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.delimiter, self.decimal, self.line_breaks = delimiter, decimal, line_breaks
        self.percent = frozenset(percent)
        self._in_notation = set(percent)  # columns that pyarrow cannot parse as numbers
        self.notation = Notation(decimal=decimal, thousands=thousands, missing=tuple(missing))

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the first file. Their types are guessed from its first MiB."""
        return self._first_rows.schema

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers. A column of numbers and text is an error."""
        for name, chunks in zip(self.columns.names, self._first_rows.columns, strict=True):
            column = chunks.combine_chunks()
            foreign = b""
            if pa.types.is_binary(column.type):  # the reader's type of text that is not UTF-8
                column, foreign = as_latin(column)
            if name not in self.keys and arrow_columns.is_text(column.type):
                _, bad = arrow_columns.numbers(self.plain_numbers(name, column), "float64")
                if not bad.all() and foreign:
                    raise not_utf8(f"{self.table_name}, column {name}", foreign[0])
                if not bad.all():
                    raise self._mixed(name, column, str(column[int(bad.argmax())]))
        return super().numeric_columns()

    def _mixed(self, name: str, column: pa.Array, text: str) -> DataError:
        """Return the error for a column of numbers and text."""
        remedy = remedy_of(column.drop_null().to_pylist(), self.decimal, name)
        quoted = json.dumps(text, ensure_ascii=False)
        return DataError(
            f"{self.table_name}: column {name} contains numbers and text such as {text}, expected only one of them; "
            f"{remedy or f'set source.missing: [{quoted}] if it means a missing value'}, or list the features in "
            "source.features"
        )

    def plain_numbers(self, name: str, column: pa.Array) -> pa.Array:
        """Return a column with numbers in text as Python writes them."""
        return self.notation.plain(column, is_percent=name in self.percent)

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
        for name in sorted(self.percent):
            if name not in names:
                hint = did_you_mean(name, names, otherwise=f"use one of {', '.join(names[:20])}")
                raise DataError(f"{path}: no column {name}, which is in source.percent; {hint}")
        head = first_rows_of(path, start)
        if self.line_breaks:
            head += self._texts.rest(self._texts.open_at(0, start + len(head)), path, head)
        content = b"".join(
            line for line in head.splitlines(keepends=True) if not self._is_header(line)
        )
        if not content.strip():
            self._check_rows()
            return pa.table({name: pa.nulls(0) for name in names})
        ragged: list[pcsv.InvalidRow] = []
        try:
            read = pcsv.ReadOptions(column_names=names, block_size=len(content) + 1)
            parse = self._parse_options(ragged)
            convert = self._convert_options()
            rows = pcsv.read_csv(io.BytesIO(content), read, parse, convert)
        except pa.ArrowInvalid as error:
            raise unreadable(path, str(error)) from None
        if ragged and not rows.num_rows:
            raise no_row_fits(path, names, ragged[0], content, self.delimiter)
        return self._with_numbers(rows)

    def _with_numbers(self, rows: pa.Table) -> pa.Table:
        """Convert columns of text that are numbers in the notation of the settings."""
        if self.notation == Notation(decimal=self.decimal) and not self.percent:
            return rows
        for place, name in enumerate(rows.column_names):
            column = rows.column(place).combine_chunks()
            if name in self.keys or not arrow_columns.is_text(column.type):
                continue
            plain = self.plain_numbers(name, column)
            values, bad = arrow_columns.numbers(plain, "float64")
            is_given = np.asarray(arrow_columns.without_missing(plain).is_valid())
            if not (bad & is_given).any():
                self._in_notation.add(name)
                rows = rows.set_column(place, name, pa.array(values, mask=bad))
        return rows

    def _check_rows(self) -> None:
        """Reject files that contain only headers."""
        starts = [start for _, start in self._headers]
        if not any(first_rows_of(*one).strip() for one in zip(self.files, starts, strict=True)):
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
        found = [read_header(path, self.delimiter) for path in self.files]
        first = found[0][0]
        for path, (names, _) in zip(self.files, found, strict=True):
            if names != first:
                raise DataError(
                    f"{path}: its header has {difference_of(names, first)} {self.files[0]}; write the same header in "
                    "all files, or make two datasets of them"
                )
        return found

    @cached_property
    def _texts(self) -> TextFiles:
        starts = [start for _, start in self._headers]
        if self.line_breaks:
            return QuotedLines(self.files, starts, self.delimiter)
        return TextFiles(self.files, starts)

    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the lines that begin in the shard's range of bytes, 8 MiB at a time."""
        for index, first, last in self._texts.slices(shard, self.num_shards):
            for lines in self._texts.lines(index, first, last):
                yield self._block(shard, index, lines)

    def _block(self, shard: int, index: int, lines: Lines) -> Block:
        if isinstance(self._texts, QuotedLines):
            self._texts.check(lines)
        else:
            refuse_line_breaks(lines)
        ragged: list[pcsv.InvalidRow] = []
        rows = self._parse(lines, ragged)
        if rows.num_rows + len(ragged) != len(lines.starts):
            raise DataError(
                f"{lines.where(0)} and after: {rows.num_rows + len(ragged)} rows in {len(lines.starts)} lines, "
                "expected one row per line; remove carriage returns from the fields"
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
            rows=self._without_missing(rows),
            positions=lines.place + lines.starts[kept],
            where=lambda i: lines.where(kept[i]),
        )

    def _without_missing(self, rows: pa.Table) -> pa.Table:
        for place, name in enumerate(rows.column_names if self.notation.missing else ()):
            column = rows.column(place).combine_chunks()
            rows = rows.set_column(place, name, self.notation.without_missing(column))
        return rows

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
            convert = self._convert_options(column_types=types, include_columns=self.used)
            ragged.clear()
            try:
                return pcsv.read_csv(io.BytesIO(lines.content), read, parse, convert)
            except pa.ArrowInvalid as error:
                reason = str(error)  # read as text, a bad value can be reported with its row
        refuse_other_encodings(lines)
        raise unreadable(lines.path, reason)

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        _ = self._first_rows  # finds columns for `_in_notation`
        types = dict.fromkeys(self.used, pa.string())
        types |= {name: self._type_of(name) for name in self.features}
        types |= {self.in_file(name): typed.read_as(column) for name, column in self.named.items()}
        if self.task == "regression" and self.has_labels:
            types |= dict.fromkeys(self.labels, pa.float32())
        if self.weight and not self.lacks_weight:
            types[self.weight] = pa.float32()
        if self.id_column and pa.types.is_integer(self.columns.field(self.id_column).type):
            types[self.id_column] = pa.int64()
        # a percentage may have no sign; and one column of marked numbers must not make all others text
        return types | dict.fromkeys(self._in_notation.intersection(self.used), pa.string())

    def _convert_options(self, **options: Any) -> pcsv.ConvertOptions:
        convert = pcsv.ConvertOptions(decimal_point=self.decimal, **options)
        if self.notation.missing:
            convert.null_values = [*convert.null_values, *self.notation.missing]
        return convert

    def _type_of(self, name: str) -> pa.DataType:
        """Return the type to parse a feature as."""
        if self.kinds.get(name, "number") != "number":
            return pa.string()
        if self.kinds and pa.types.is_boolean(self.columns.field(name).type):
            return pa.bool_()
        kind = prepared_columns.number_type(self.plan, self.dtype) if self.plan else self.dtype
        return pa.from_numpy_dtype(np.dtype(kind))

    def _parse_options(self, ragged: list[pcsv.InvalidRow]) -> pcsv.ParseOptions:
        def keep(row: pcsv.InvalidRow) -> str:
            ragged.append(row)
            return "skip"

        return pcsv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=self.line_breaks,
            invalid_row_handler=keep,
        )
