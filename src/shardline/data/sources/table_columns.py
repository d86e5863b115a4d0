"""Columns of a table by role (features, labels, ids, splits, groups), for CSV, Parquet, Delta and Arrow."""

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
from shardline.data.sources import arrow_columns, prepared_columns, typed
from shardline.data.sources.from_files import FileSource
from shardline.data.sources.notation import remedy_of
from shardline.data.sources.prepared_columns import Kind, Treatments
from shardline.data.sources.source import Schema
from shardline.records.preprocessing import Preprocessing
from shardline_io.column_names import WEIGHT


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of one file, before conversion.

    Attributes:
        file: Index of the file in the source's `names`.
        rows: The used columns [N]. A column of numbers is text if it could not be parsed.
        positions: Positions of the rows in the file [N]. They must never change.
        where: Function that describes the place of row i of the block.
    """

    file: int
    rows: pa.Table
    positions: np.ndarray
    where: Callable[[int], str]

    @classmethod
    def after(cls, file: int, place: int, rows: pa.Table, shown: str) -> "Block":
        """Return a block of consecutive rows that begin at row `place` of the file named `shown`."""
        positions = np.arange(place, place + rows.num_rows)
        return cls(
            file=file,
            rows=rows,
            positions=positions,
            where=lambda i: f"{shown}, row {place + i + 1}",
        )

    def only(self, is_kept: np.ndarray) -> "Block":
        """Return a block of the rows selected by a mask [N] bool."""
        places = np.flatnonzero(is_kept)
        return Block(
            file=self.file,
            rows=self.rows.filter(pa.array(is_kept)),
            positions=self.positions[is_kept],
            where=lambda i: self.where(int(places[i])),
        )


class TableColumns(FileSource):
    """Base class that selects the columns of a table.

    Attributes:
        empty_is_missing: Whether an empty text means a missing value.
        infers_columns: Whether to keep all columns if neither `label` nor `columns` is set.
        decimal: Decimal mark in text; empty if the files contain numbers.

    Args:
        label: Column of the label. Optional if `columns` is set. Several columns, or one column of
            lists, for `regression` of several numbers and for `multilabel`.
        features: Columns of the features in order, or one column of lists. Default: all
            columns of numbers except label, id, split and group.
        id_column: Column of the row id (whole numbers or text). Default: ids are made from the
            file name and the row's position in the file.
        columns: Type of each column by name, instead of `features`. `shardline.data.columns`
            lists the types. The label becomes the column `labels`.
        rename: Names of columns in the files, where these differ from the column's name.
        task: `classification`, `regression` or `multilabel` (labels of 0 and 1).
        weight: Column of the rows' weights, at least 0. It becomes the column `weight`.
        classes: Values of the label, in label order.
        num_classes: Number of classes, instead of `classes`, for labels 0..num_classes-1.
        dtype: NumPy type of the stored features.
        preprocess: How features of any type become numbers, see `Treatments`. None: features are numbers.
    """

    empty_is_missing = False
    infers_columns = False
    decimal = ""

    def __init__(
        self, *, label: str | Sequence[str] = "", features: Sequence[str] = (), id_column: str | None = None,
        columns: Mapping[str, str] | None = None, rename: Mapping[str, str] | None = None,
        task: Literal["classification", "regression", "multilabel"] = "classification",
        classes: Sequence[str | int] = (), num_classes: int = 0, dtype: str = "float32", weight: str = "",
        preprocess: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        if not (label or columns or self.infers_columns):
            raise DataError(
                f"source {type(self).__name__}: neither label nor columns is set; "
                "set source.label or source.columns"
            )
        self.named = parse_columns(dict(sorted(columns.items()))) if columns else {}
        self._in_file = dict(rename or {})
        self.labels = ((label,) if label else ()) if isinstance(label, str) else tuple(label)
        self._has_many = self.labels != (label,)
        self.label = self.labels[0] if self.labels else ""
        self.weight, self.id_column, self.task, self.dtype = weight, id_column, task, dtype
        self.classes = tuple(map(str, classes or range(num_classes)))
        self.split_column: str | None = self.splits.get("column")
        self.group_column: str | None = self.splits.get("group")
        self.stratify_column: str | None = self.splits.get("stratify")
        self.time_column: str | None = self.splits.get("time")
        self._given = tuple(features)
        self.treatments = None if preprocess is None else Treatments(preprocess)
        self._unusable: dict[str, str] = {}  # columns left out, with the reason

    @cached_property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """All columns of the table's first file.

        Raises:
            DataError: The table cannot be read. The message names the file.
        """

    @abstractmethod
    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the used columns of a shard's rows, in blocks that fit in memory."""

    def shown(self, file: int) -> str:
        """Return a file's name for messages."""
        return str(self.files[file])

    @property
    def table_name(self) -> str:
        """Name of the table in messages: the first file, whose columns all other files must have."""
        return self.shown(0)

    def in_file(self, name: str) -> str:
        """Return the name of a column in the files."""
        return self._in_file.get(name, name)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        for name in [*map(self.in_file, self.named), *self.keys, *self.decisive]:
            self._check_name(name)
        if self.named:
            return ()
        if self.treatments:
            given = self._given or self._usable_columns(self.treatments)
        else:
            given = self._given or self.numeric_columns()
        for name in given:
            self._check_name(name)
            if not self.treatments:
                self.check_feature(name, alone=len(given) == 1)
        if self.id_column and pa.types.is_floating(self.columns.field(self.id_column).type):
            raise DataError(
                f"{self.table_name}: id_column {self.id_column} contains fractions, expected whole numbers or "
                "text; set source.id_column to another column"
            )
        return given

    def _usable_columns(self, treatments: Treatments) -> tuple[str, ...]:
        """Return the columns that can be features; `_unusable` gets a reason for each other one.

        Raises:
            DataError: There are none, or it is unknown whether a column is a feature.
        """
        free = [one for one in self.columns if one.name not in self.keys]
        asked = [one for one in free if one.name not in treatments.columns]
        numbers = [one.name for one in asked if arrow_columns.is_number(one.type)]
        texts = [one.name for one in asked if arrow_columns.is_text(one.type)]
        self._refuse_guesses(numbers, texts)
        self._unusable = prepared_columns.unusable_columns(asked, self.first_texts(texts))
        if found := tuple(one.name for one in free if one.name not in self._unusable):
            return found
        raise DataError(
            f"{self.table_name}: no column that can be a feature; list the features in source.features"
        )

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What each feature of a preprocessed table contains."""
        if self.treatments is None:
            return {}
        self.treatments.check_names(self.features, self.table_name)
        return {
            name: self.treatments.kind_of(name, self.columns.field(name).type, self.table_name)
            for name in self.features
        }

    @cached_property
    def plan(self) -> Preprocessing | None:
        """Preprocessing of the features, before it is fitted."""
        return self.treatments.plan(self.kinds) if self.treatments else None

    def _check_name(self, name: str) -> None:
        known = self.columns.names
        if known.count(name) == 1:
            return
        listed = f"use one of {', '.join(known[:20])}"
        nearest = self.hint_of_columns or did_you_mean(name, known, otherwise=listed)
        hint = "rename one of them" if name in known else nearest
        raise DataError(
            f"{self.table_name}: {known.count(name) or 'no'} columns named {name}; {hint}"
        )

    @property
    def hint_of_columns(self) -> str:
        """Remedy for missing columns, if one is known; else empty."""
        return ""

    @property
    def has_labels(self) -> bool:
        """Whether the files have the label column."""
        return bool(self.label) and not self.lacks_label

    @cached_property
    def lacks_label(self) -> bool:
        """Whether labels are zeros because an optional label column is missing."""
        return self.labels_optional and not {*self.labels} <= {*self.columns.names}

    @cached_property
    def lacks_weight(self) -> bool:
        """Whether weights are 1 because the column is missing in files whose labels are optional."""
        return self.labels_optional and bool(self.weight) and self.weight not in self.columns.names

    @property
    def keys(self) -> list[str]:
        """Columns of labels, weight, id, split and group."""
        labels = () if self.lacks_label else self.labels
        weight = "" if self.lacks_weight else self.weight
        given = (*labels, weight, self.id_column, self.split_column, self.group_column)
        return [name for name in given if name]

    @property
    def used(self) -> list[str]:
        """All columns that are read."""
        named = map(self.in_file, self.named)
        return list(dict.fromkeys([*self.features, *named, *self.keys, *self.decisive]))

    @property
    def decisive(self) -> list[str]:
        """Columns that decide the splits, and may be features or the label too."""
        return [name for name in (self.stratify_column, self.time_column) if name]

    def numeric_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers, or else of lists, except label, id, split and group.

        Raises:
            DataError: There are no such columns, or the type of a column is unknown.
        """
        free = [field for field in self.columns if field.name not in self.keys]
        found = [field.name for field in free if arrow_columns.is_number(field.type)]
        found = found or [field.name for field in free if arrow_columns.is_list(field.type)]
        nulls = [field.name for field in free if pa.types.is_null(field.type)]
        empty = [name for name in nulls if name.strip()]  # no name: lines end with a delimiter
        self._refuse_guesses(
            found, [field.name for field in free if arrow_columns.is_text(field.type)]
        )
        if not found or empty:
            what = (
                f"column {empty[0]} begins with empty values" if empty else "no column of numbers"
            )
            raise DataError(
                f"{self.table_name}: {what}, so the feature columns are unknown; "
                "list them in source.features"
            )
        return tuple(found)

    def _refuse_guesses(self, found: Sequence[str], texts: Sequence[str]) -> None:
        """Reject columns that may or may not be features.

        Raises:
            DataError: There is such a column. The message names it and the setting that decides.
        """
        indexes = arrow_columns.index_columns(self.columns)
        for name in found:
            if arrow_columns.is_index(name) or name in indexes:
                what = f"column {name} is" if name.strip() else "a column without a name may be"
                raise DataError(
                    f"{self.table_name}: {what} the index of a data frame, which is usually not a feature; "
                    "list the features in source.features, or write the file without the index (index=False)"
                )
        for name, column in self.first_texts(texts).items():
            if values := arrow_columns.as_numbers(column):
                marked = next((one for one in values if not one.isdigit()), values[0])
                remedy = remedy_of(values, self.decimal, name)
                raise DataError(
                    f"{self.table_name}: column {name} contains text that may be numbers, such as {marked}, expected "
                    f"plain numbers for a feature; {remedy}, or list the features in source.features"
                )

    def plain_numbers(self, name: str, column: pa.Array) -> pa.Array:
        """Return a column with numbers in text as Python writes them.

        Args:
            name: Name of the column in the files.
        """
        return column

    def first_texts(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the first values of text columns."""
        return {}

    @property
    def inferred(self) -> dict[str, Any]:
        """Feature columns and their type if inferred, and the columns left out."""
        used = self.used
        found: dict[str, Any] = {}
        if self.plan:
            found["features"] = prepared_columns.described(self.plan)
        elif not (self._given or self.named):
            found["features, all columns of numbers"] = list(self.features)
            found["stored as"] = self.dtype
        if not self._given and (unique := self._unrepeated()):
            found["no value repeated, as in an id"] = unique
        left = {
            field.name.strip() or "(no name)": self._unusable.get(field.name, str(field.type))
            for field in self.columns
            if field.name not in used
        }
        return found | ({"columns left out": left} if left else {})

    def _unrepeated(self) -> list[str]:
        """Return the features of whole numbers or dates whose first values all differ."""
        kinds = {name: self.columns.field(name).type for name in self.features}
        whole = [
            name
            for name, of in kinds.items()
            if pa.types.is_integer(of) or prepared_columns.is_date(of)
        ]
        columns = self.first_texts(whole) if whole else {}
        return [name for name, values in columns.items() if arrow_columns.are_unique(values)]

    def check_types(self, kinds: pa.Schema, where: str) -> None:
        """Check that the columns of a file can be converted to `columns`.

        Raises:
            DataError: A column cannot be converted. Names file, column and both types.
        """
        for name, column in self.named.items():
            kind = kinds.field(self.in_file(name)).type
            if not typed.fits(kind, column):
                raise DataError(
                    f"{where}: column {self.in_file(name)} is of type {kind}, expected a type that can be converted to "
                    f"{column}; change source.columns.{name}, or convert the column"
                )

    def check_feature(self, name: str, *, alone: bool) -> None:
        """Check that a feature column contains numbers, or lists of numbers if it is alone.

        Raises:
            DataError: It does not. The message names the column and its type.
        """
        kind = self.columns.field(name).type
        is_list = arrow_columns.is_list(kind)
        if is_list and not alone:
            raise DataError(
                f"{self.table_name}: column {name} contains lists, expected numbers in each of several features; "
                "make it the only column in source.features, or remove it there"
            )
        if not arrow_columns.is_number(kind.value_type if is_list else kind):
            raise DataError(
                f"{self.table_name}: column {name} is of type {kind}, expected numbers; "
                "remove it from source.features, or convert it"
            )

    @property
    def _holds_lists(self) -> bool:
        return arrow_columns.is_list(self.columns.field(self.features[0]).type)

    @cached_property
    def schema(self) -> Schema:
        """Schema of the named columns, or of a table with one number per feature column or list item."""
        targets, weighted = self._targets, bool(self.weight)
        if self.named or self.plan:
            kinds = {"classification": "int64", "multilabel": "uint8"}
            label = kinds.get(self.task, "float32") + (f"[{len(targets)}]" if targets else "")
            columns = {name: str(column) for name, column in self.named.items()}
            if self.plan:
                columns = prepared_columns.stored_columns(self.plan, self.dtype)
            columns |= {"labels": label} if self.label else {}
            return Schema(
                columns=columns | ({WEIGHT: "float32"} if weighted else {}),
                classes=self.classes if self.task == "classification" else (),
                task=self.task if targets else "classification",
                targets=targets,
                weighted=weighted,
                preprocessing=self.plan,
            )
        size = self._list_size(self.features[0]) if self._holds_lists else len(self.features)
        return Schema(
            feature_shape=(size,),
            feature_dtype=self.dtype,
            task=self.task,
            classes=self.classes if self.task == "classification" else (),
            targets=targets,
            weighted=weighted,
        )

    @cached_property
    def _targets(self) -> tuple[str, ...]:
        """Names of the numbers or flags in a row's labels; empty for a class or one number."""
        if self.task == "classification" or not self.labels:
            return ()
        if self.lacks_label and not self._has_many and self.classes:
            return self.classes  # of the dataset that the run was trained on
        if self.holds_list_label:
            size = self._list_size(self.label)
            names = self.classes or tuple(map(str, range(size)))
            if len(names) != size:
                raise DataError(
                    f"{self.table_name}: column {self.label} is a list of {size} values in the first row, expected "
                    f"{len(names)}, one for each of source.classes; correct the classes"
                )
            return names
        return self.labels if self._has_many or self.task == "multilabel" else ()

    @cached_property
    def holds_list_label(self) -> bool:
        """Whether the only label column contains lists."""
        if len(self.labels) != 1 or self.task == "classification" or self.lacks_label:
            return False
        return arrow_columns.is_list(self.columns.field(self.label).type)

    def _list_size(self, name: str) -> int:
        kind = self.columns.field(name).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        size = self.first_list_size(name)
        if not size:
            raise DataError(
                f"{self.table_name}: column {name} is an empty list in the first row, "
                "expected one number per feature; fix the first row"
            )
        return size

    def first_list_size(self, name: str) -> int:
        """Return the length of the first list in a column, or 0 if there is none."""
        raise NotImplementedError
