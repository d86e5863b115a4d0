"""Which columns of a table are features, labels, ids and splits, as CSV, Parquet and Delta share it."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.columns import parse_columns
from shardline.data.sources import arrow_columns, typed
from shardline.data.sources.from_files import FileSource
from shardline.data.sources.source import Schema


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows of one file, as they were read.

    Attributes:
        file: the file's place in the source's `names`.
        rows: the used columns [N]; text where numbers are expected if the reader found no numbers.
        positions: places of the rows in the file [N], which never change.
        where: describes the place of row i of the block.
    """

    file: int
    rows: pa.Table
    positions: np.ndarray
    where: Callable[[int], str]

    @classmethod
    def after(cls, file: int, place: int, rows: pa.Table, shown: str) -> "Block":
        """Return rows that follow one another from a place on in a file, with its name for messages."""
        positions = np.arange(place, place + rows.num_rows)
        return cls(
            file=file,
            rows=rows,
            positions=positions,
            where=lambda i: f"{shown}, row {place + i + 1}",
        )

    def only(self, is_kept: np.ndarray) -> "Block":
        """Return some of the rows [N] bool."""
        places = np.flatnonzero(is_kept)
        return Block(
            file=self.file,
            rows=self.rows.filter(pa.array(is_kept)),
            positions=self.positions[is_kept],
            where=lambda i: self.where(int(places[i])),
        )


class TableColumns(FileSource):
    """The columns of a table.

    Attributes:
        empty_is_missing: whether an empty text stands for no value.
        infers_columns: whether all columns are kept where none is named.
        decimal: mark of decimals in text; empty where the files hold numbers.

    Args:
        label: column of the label; may be left out beside `columns`.
        features: columns of the features in their order, or one column of lists; left
            out, all columns of numbers that are not label, id or split.
        id_column: column of the row's id (whole numbers, or text); left out, a row is
            known by its file's name and its place in it.
        columns: type of each column by name, as `shardline.data.columns` lists them, in place
            of `features`; the label is the column `labels` then.
        rename: what columns are called in the files, where not by their name.
        task: `classification` or `regression`.
        classes: the labels' values in label order.
        num_classes: in place of `classes` where labels are 0..num_classes-1.
        dtype: NumPy type of the features, as stored.
    """

    empty_is_missing = False
    infers_columns = False
    decimal = ""

    def __init__(
        self, *, label: str = "", features: Sequence[str] = (), id_column: str | None = None,
        columns: Mapping[str, str] | None = None, rename: Mapping[str, str] | None = None,
        task: Literal["classification", "regression"] = "classification",
        classes: Sequence[str | int] = (), num_classes: int = 0, dtype: str = "float32",
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        if not (label or columns or self.infers_columns):
            raise DataError(
                f"source {type(self).__name__}: neither label nor columns is given; name one"
            )
        self.named = parse_columns(dict(sorted(columns.items()))) if columns else {}
        self._in_file = dict(rename or {})
        self.label, self.id_column, self.task, self.dtype = label, id_column, task, dtype
        self.classes = tuple(map(str, classes or range(num_classes)))
        self.split_column: str | None = self.splits.get("column")
        self._given = tuple(features)

    @cached_property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """All columns of the table, as its first file has them.

        Raises:
            DataError: the table cannot be read; names the file.
        """

    @abstractmethod
    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the rows of a shard with the used columns, in blocks that fit in memory."""

    def shown(self, file: int) -> str:
        """Return a file's name as messages show it."""
        return str(self.files[file])

    @property
    def table_name(self) -> str:
        """What messages about the whole table begin with: its first file, which every other must agree with."""
        return self.shown(0)

    def in_file(self, name: str) -> str:
        """Return what a column is called in the files."""
        return self._in_file.get(name, name)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features' columns."""
        for name in [*map(self.in_file, self.named), *self.keys]:
            self._check_name(name)
        if self.named:
            return ()
        given = self._given or self.numeric_columns()
        for name in given:
            self._check_name(name)
            self.check_feature(name, alone=len(given) == 1)
        if self.id_column and pa.types.is_floating(self.columns.field(self.id_column).type):
            raise DataError(
                f"{self.table_name}: id_column {self.id_column} holds fractions, expected whole numbers or "
                "text; choose another"
            )
        return given

    def _check_name(self, name: str) -> None:
        known = self.columns.names
        if known.count(name) == 1:
            return
        listed = f"known are {', '.join(known[:20])}"
        nearest = self.hint_of_columns or did_you_mean(name, known, otherwise=listed)
        hint = "rename one of them" if name in known else nearest
        raise DataError(
            f"{self.table_name}: {known.count(name) or 'no'} columns named {name}; {hint}"
        )

    @property
    def hint_of_columns(self) -> str:
        """What to do where the files have other columns than were expected; empty where nothing is known."""
        return ""

    @property
    def has_labels(self) -> bool:
        """Whether the files have the label's column."""
        return bool(self.label) and not self.lacks_label

    @cached_property
    def lacks_label(self) -> bool:
        """Whether rows get zeros, since there is no such column and needs to be none."""
        return self.labels_optional and bool(self.label) and self.label not in self.columns.names

    @property
    def keys(self) -> list[str]:
        """Columns that are no features."""
        label = "" if self.lacks_label else self.label
        return [name for name in (label, self.id_column, self.split_column) if name]

    @property
    def used(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.features, *map(self.in_file, self.named), *self.keys]))

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers, or of lists, that are no keys.

        Raises:
            DataError: there are none, or a column's values do not tell its type.
        """
        free = [field for field in self.columns if field.name not in self.keys]
        found = [field.name for field in free if arrow_columns.is_number(field.type)]
        found = found or [field.name for field in free if arrow_columns.is_list(field.type)]
        nulls = [field.name for field in free if pa.types.is_null(field.type)]
        empty = [name for name in nulls if name.strip()]  # delimiters at the ends of lines
        self._refuse_guesses(
            found, [field.name for field in free if arrow_columns.is_text(field.type)]
        )
        if not found or empty:
            what = (
                f"column {empty[0]} begins with empty values" if empty else "no column of numbers"
            )
            raise DataError(
                f"{self.table_name}: {what}, so which columns are features is unknown; "
                "list them in source.features"
            )
        return tuple(found)

    def _refuse_guesses(self, found: Sequence[str], texts: Sequence[str]) -> None:
        """Refuse columns that only a person can tell from features.

        Raises:
            DataError: names the column, and the setting that tells.
        """
        indexes = arrow_columns.index_columns(self.columns)
        for name in found:
            if arrow_columns.is_index(name) or name in indexes:
                what = f"column {name} is" if name.strip() else "a column without a name is perhaps"
                raise DataError(
                    f"{self.table_name}: {what} the index of a data frame, so whether it is a feature is unknown; "
                    "list the features in source.features, or write the file without it (index=False)"
                )
        for name, column in self.first_texts(texts).items():
            if values := arrow_columns.as_numbers(column):
                marked = next((one for one in values if not one.isdigit()), values[0])
                remedy = arrow_columns.remedy_of(values, self.decimal)
                raise DataError(
                    f"{self.table_name}: column {name} holds text that may be numbers, such as {marked}, so whether it "
                    f"is a feature is unknown; {remedy}, or list the features in source.features"
                )

    def first_texts(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the first values of columns of text."""
        return {}

    @property
    def inferred(self) -> dict[str, Any]:
        """Features and their type where none are listed, and the columns that are in none of the rows."""
        used = self.used
        found: dict[str, Any] = {}
        if not (self._given or self.named):
            found["features, all columns of numbers"] = list(self.features)
            found["stored as"] = self.dtype
        left = {
            field.name.strip() or "(no name)": str(field.type)
            for field in self.columns
            if field.name not in used
        }
        return found | ({"columns left out": left} if left else {})

    def check_types(self, kinds: pa.Schema, where: str) -> None:
        """Refuse a file whose columns cannot hold values of the named ones.

        Raises:
            DataError: names file, column and both types.
        """
        for name, column in self.named.items():
            kind = kinds.field(self.in_file(name)).type
            if not typed.fits(kind, column):
                raise DataError(
                    f"{where}: column {self.in_file(name)} is of type {kind}, expected one that {column} can be read "
                    f"from; change source.columns.{name}, or convert it"
                )

    def check_feature(self, name: str, *, alone: bool) -> None:
        """Refuse a column that holds no numbers.

        Raises:
            DataError: names the column and its type.
        """
        kind = self.columns.field(name).type
        is_list = arrow_columns.is_list(kind)
        if is_list and not alone:
            raise DataError(
                f"{self.table_name}: column {name} holds lists beside other features; "
                "name it alone in source.features, or leave it out"
            )
        if not arrow_columns.is_number(kind.value_type if is_list else kind):
            raise DataError(
                f"{self.table_name}: column {name} is of type {kind}, expected numbers; "
                "drop it from source.features, or convert it"
            )

    @property
    def _holds_lists(self) -> bool:
        return arrow_columns.is_list(self.columns.field(self.features[0]).type)

    @cached_property
    def schema(self) -> Schema:
        """A row of as many numbers as there are columns, or as long as a list; else the named columns."""
        if self.named:
            label = "int64" if self.task == "classification" else "float32"
            labels = {"labels": label} if self.label else {}
            return Schema(
                columns={name: str(column) for name, column in self.named.items()} | labels,
                classes=self.classes if self.task == "classification" else (),
            )
        size = self._list_size() if self._holds_lists else len(self.features)
        return Schema(
            feature_shape=(size,),
            feature_dtype=self.dtype,
            task=self.task,
            classes=self.classes if self.task == "classification" else (),
        )

    def _list_size(self) -> int:
        kind = self.columns.field(self.features[0]).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        size = self.first_list_size(self.features[0])
        if not size:
            raise DataError(
                f"{self.table_name}: column {self.features[0]} begins with an empty list, "
                "expected as many numbers as a row has features; fix the first row"
            )
        return size

    def first_list_size(self, name: str) -> int:
        """Return the length of a column's first list; 0 where it has none."""
        raise NotImplementedError
