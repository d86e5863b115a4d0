"""Source of JSON Lines files, with one object per line. Keys become columns, or are tokenized."""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.columns import Column, parse_columns
from shardline.data.sources.from_files import UnusableError, group_keys, ids_in_file
from shardline.data.sources.json_values import (
    class_of,
    group_of,
    id_of,
    read_object,
    reader_of,
    split_of,
    time_of,
    value_at,
)
from shardline.data.sources.lines import Lines, refuse_other_content
from shardline.data.sources.source import Ragged, Schema, Table
from shardline.data.sources.tokenizer import TokenSource

# names in messages of values that are not columns
_ID, _SPLIT, _GROUP = "id_column", "splits.column", "splits.group"
_STRATUM, _TIME = "splits.stratify", "splits.time"
_OTHERS = (_ID, _SPLIT, _GROUP, _STRATUM, _TIME)
_TEXT = Column.parse("text", "text")


class Jsonl(TokenSource):
    """Rows of UTF-8 JSON Lines files, plain or gzip.

    A shard is a byte range of all files. A line belongs to the shard in which its first byte
    is. Without an id column, a row's id is made from its file and the offset of its line.
    Keys that are not listed in an option are ignored.

    Args:
        columns: Type of each column by name; `shardline.data.columns` lists the types.
        rename: Key of a column, where it differs from the column's name. `a.b` is key b of object a.
        tokenize: Key of the text to tokenize, by the name of the column of tokens.
        label: Key of the label, which becomes the column `labels`.
        classes: Values of the label, in label order.
        num_classes: Number of classes, instead of `classes`, for labels 0..num_classes-1.
        id_column: Key of the row id (a whole number or text).
    """

    def __init__(
        self, *, columns: Mapping[str, str] | None = None, rename: Mapping[str, str] | None = None,
        tokenize: Mapping[str, str] | None = None, label: str | None = None,
        classes: Sequence[str | int] = (), num_classes: int = 0, id_column: str | None = None,
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self._columns = parse_columns(columns) if columns else {}
        self._rename, self._tokenize = dict(rename or {}), dict(tokenize or {})
        self._label, self._id_column = label, id_column
        self.classes = tuple(map(str, classes or range(num_classes)))

    @cached_property
    def schema(self) -> Schema:
        """Schema of the columns, the columns of tokens, and `labels`."""
        columns = {name: str(column) for name, column in self._columns.items()}
        columns |= dict.fromkeys(self._tokenize, f"{self.tokenizer.dtype}[*]")
        columns |= {"labels": "int64"} if self._label else {}
        return Schema(columns=columns, classes=self.classes)

    @property
    def has_labels(self) -> bool:
        """Whether the first row has the label key."""
        return bool(self._label) and not self._lacks_label

    @cached_property
    def _lacks_label(self) -> bool:
        if not (self.labels_optional and self._label):
            return False
        lines = next(self.texts.lines(*next(self.texts.slices(0, 1))), None)
        first = next((line for line in (lines.rows() if lines else ()) if line.strip()), None)
        if first is None:
            return False
        try:
            return value_at(read_object(first.removeprefix(BOM_UTF8)), self._label) is None
        except UnusableError:
            return False  # the error is reported when the row is read

    @cached_property
    def _readers(self) -> dict[str, tuple[str, Callable[[Any], Any]]]:
        """Key and reader of each value of a row, by name."""
        readers = {
            name: (self._rename.get(name, name), reader_of(column))
            for name, column in self._columns.items()
        }
        readers |= {name: (key, reader_of(_TEXT)) for name, key in self._tokenize.items()}
        if self._label:
            places = {name: place for place, name in enumerate(self.classes)}
            lacks = self._lacks_label
            readers["labels"] = self._label, lambda value: 0 if lacks else class_of(value, places)
        if self._id_column:
            readers[_ID] = self._id_column, id_of
        if split := self.splits.get("column"):
            readers[_SPLIT] = split, split_of
        if group := self.splits.get("group"):
            readers[_GROUP] = group, group_of
        if stratum := self.splits.get("stratify"):
            readers[_STRATUM] = stratum, str
        if time := self.splits.get("time"):
            readers[_TIME] = time, time_of
        return readers

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, with 8 MiB of text at a time."""
        self.skipped.pop(shard, None)
        for index, first, last in self.texts.slices(shard, self.num_shards):
            for lines in self.texts.lines(index, first, last):
                if table := self._table(shard, index, lines):
                    yield table

    def _table(self, shard: int, index: int, lines: Lines) -> Table | None:
        rows: list[int] = []
        values: dict[str, list[Any]] = {name: [] for name in self._readers}
        if lines.place == 0 and self.on_bad == "fail":
            _refuse_other_forms(lines)
        for row, line in enumerate(lines.rows()):
            if lines.place + lines.starts[row] == 0:
                line = line.removeprefix(BOM_UTF8)
            if not line.strip():
                continue
            try:
                found = self._values(line)
            except UnusableError as error:
                self.leave_out(shard, f"{lines.where(row)}: {error}", error.remedy)
                continue
            rows.append(row)
            for name, value in found.items():
                values[name].append(value)
        if not rows:
            return None
        if self._id_column:
            ids = np.array(values.pop(_ID), dtype=np.int64)
        else:
            ids = ids_in_file(self.names[index], lines.place + lines.starts[rows])
        groups = group_keys(values.pop(_GROUP)) if _GROUP in values else None
        splits = self.splits_of_file(index, ids if groups is None else groups)
        if _SPLIT in values:
            splits = np.array(values.pop(_SPLIT), dtype=np.int64)
        strata = group_keys(values.pop(_STRATUM)) if _STRATUM in values else None
        times = np.array(values.pop(_TIME), np.float64) if _TIME in values else None
        columns: dict[str, list[Any] | Ragged] = {**values}
        for name in self._tokenize:
            columns[name] = self.tokenizer.encode(values[name], lambda i: lines.where(rows[i]))
        return Table(
            ids=ids, columns=columns, splits=splits, groups=groups, strata=strata, times=times
        )

    def _values(self, line: bytes) -> dict[str, Any]:
        """Return the values of a row by name.

        Raises:
            UnusableError: A value cannot be used. The message names its column.
        """
        row, found = read_object(line), {}
        for name, (key, read) in self._readers.items():
            value = value_at(row, key)
            try:
                found[name] = read(value)
            except UnusableError as error:
                what = name if name in _OTHERS else f"column {name}"
                what += f" (key {key})" if key != name else ""
                hint = did_you_mean(key, row, otherwise="") if key not in row else ""
                raise UnusableError(f"{what} {error}{'; ' + hint if hint else ''}") from None
        return found


def _refuse_other_forms(lines: Lines) -> None:
    """Reject a JSON file that is not in the JSON Lines format."""
    refuse_other_content(lines.path, lines.content[:512], "JSON Lines")
    start, name = lines.content[:4096].removeprefix(BOM_UTF8).lstrip(), lines.path.name
    found, remedy = "", f"jq -c . {name}"
    if start.startswith(b"["):
        found, remedy = "is one JSON array", f"jq -c '.[]' {name}"
    elif start.splitlines()[:1] == [b"{"]:
        found = "contains objects of several lines"
    if found:
        raise DataError(
            f"{lines.path}: {found}, expected one JSON object per line; convert it, for example with `{remedy}`"
        )
