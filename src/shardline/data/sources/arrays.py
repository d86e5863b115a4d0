"""Base class of sources that read files of arrays: row i of a table is item i of each array."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.columns import Column, parse_columns
from shardline.data.sources.array_rows import Array, ArrayTable, Rows
from shardline.data.sources.from_files import FileSource
from shardline.data.sources.source import Schema, Table, shard_slices
from shardline.records.datasets import DTYPES

_BLOCK_BYTES = 64 * 2**20
_WIDER = {"uint32": "int64", "float128": "float64", "longdouble": "float64"}
_REMEDY = "download it again, or remove it from source.files"


class ArrayFiles(FileSource):
    """Base class of sources that read files of arrays.

    Args:
        label: Array of the labels. Without it and `columns`, all arrays become columns.
        features: Array of the features. Default: the only array besides label, id and split.
        columns: Type of each column by name, instead of `features`. The label becomes the column `labels`.
        rename: Names of arrays, where these differ from the column's name.
        id_column: Array of the row ids, whole numbers or text.
        task: `classification` or `regression`.
        classes: Values of the label, in label order. Default: the numbers up to the largest
            label, or the texts in alphabetical order.
        num_classes: Number of classes, instead of `classes`, for labels 0..num_classes-1.
    """

    infers_columns = True

    def __init__(
        self, *, label: str = "", features: str = "", columns: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None, id_column: str = "",
        task: Literal["classification", "regression"] = "classification", classes: Sequence[str | int] = (),
        num_classes: int = 0, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.label, self.id_column, self.task = label, id_column, task
        self._features, self._given, self._in_file = features, dict(columns or {}), rename or {}
        self._classes = tuple(map(str, classes or range(num_classes)))

    @abstractmethod
    def open_tables(self) -> list[ArrayTable]:
        """Return the arrays of all files, without reading their values.

        Raises:
            DataError: A file is damaged. The message names it.
        """

    @abstractmethod
    def is_text(self, array: Array) -> bool:
        """Return whether an array contains text."""

    @cached_property
    def tables(self) -> list[ArrayTable]:
        """Tables, which have the same arrays with the same types and shapes of a row.

        Raises:
            DataError: They differ. The message names file and array.
        """
        tables = self.open_tables()
        for table in tables:
            self._check_rows(table)
            for name in self._used(tables[0]):
                self._check_array(table, name, tables[0])
        return tables

    def _check_rows(self, table: ArrayTable) -> None:
        sizes: dict[str, Any] = {
            name: array.shape[:1] or "a single value" for name, array in table.arrays.items()
        }
        if not table.arrays:
            raise DataError(f"{table.where}: contains no array, expected one or more; {_REMEDY}")
        if len({*sizes.values()}) > 1 or "a single value" in sizes.values():
            found = ", ".join(
                f"{name} ({size if isinstance(size, str) else f'{size[0]:,} rows'})"
                for name, size in [*sizes.items()][:8]
            )
            raise DataError(
                f"{table.where}: its arrays have different lengths: {found}, expected as many rows in each; put the "
                "arrays of each split into a file or folder of its own, and set splits.files"
            )

    def _check_array(self, table: ArrayTable, name: str, first: ArrayTable) -> None:
        if name not in table.arrays:
            raise DataError(
                f"{table.where}: no array {name}, unlike {first.where}; write the same arrays into all files, or make "
                "two datasets of them"
            )
        form, expected = (
            (of.arrays[name].dtype, [*of.arrays[name].shape[1:]]) for of in (table, first)
        )
        if form != expected and not self.is_text(table.arrays[name]):
            raise DataError(
                f"{table.where}: rows of {name} are {form[0]}{form[1]}, expected {expected[0]}{expected[1]} as in "
                f"{first.where}; make two datasets of these files"
            )

    # ---- roles of arrays

    @property
    def has_labels(self) -> bool:
        """Whether the files have the array of labels."""
        return bool(self.label) and self.label in self.tables[0].arrays

    @property
    def keys(self) -> list[str]:
        """Arrays of label, id and split."""
        keys = [self.id_column, self.splits.get("column", "")]
        return [name for name in (self.label, *keys) if name]

    def _used(self, first: ArrayTable) -> list[str]:
        lacks = self.labels_optional and self.label not in first.arrays
        keys = [name for name in self.keys if not (lacks and name == self.label)]
        self._check_names(keys, first)
        roles = [*self.roles(first).values()]
        self._check_names(roles, first)
        return [*roles, *keys]

    def _check_names(self, names: Sequence[str], first: ArrayTable) -> None:
        for name in names:
            if name not in first.arrays:
                known = f"use one of {', '.join([*first.arrays][:20])}"
                hint = did_you_mean(name, first.arrays, otherwise=known)
                raise DataError(f"{first.where}: no array named {name}; {hint}")

    def roles(self, first: ArrayTable) -> dict[str, str]:
        """Return the array of each column but the labels."""
        free = [name for name in first.arrays if name not in self.keys]
        if self._given:
            return {name: self._in_file.get(name, name) for name in sorted(self._given)}
        if not self.label:
            names = {in_file: name for name, in_file in self._in_file.items()}
            return {names.get(one, one): one for one in sorted(free)}
        if not self._features and len(free) != 1:
            raise DataError(
                f"{first.where}: {len(free)} arrays besides label, id and split ({', '.join(free[:20]) or 'none'}), "
                "expected one of features; set source.features to one of them, or list source.columns"
            )
        return {"features": self._features or free[0]}

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Columns of the rows, without the labels."""
        first = self.tables[0]
        return parse_columns(
            {
                name: self._given.get(name) or self._type(first, array)
                for name, array in self.roles(first).items()
            }
        )

    def _type(self, table: ArrayTable, name: str) -> Column | str:
        array = table.arrays[name]
        if self.is_text(array):
            return "text"
        dtype = _WIDER.get(array.dtype.name, array.dtype.name)
        if dtype not in DTYPES:
            raise DataError(
                f"{table.where}: array {name} is of type {array.dtype}, which a dataset cannot store, expected numbers "
                "or text; convert it, or list the arrays to keep in source.columns"
            )
        return Column(dtype=dtype, shape=tuple(map(int, array.shape[1:])))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; empty without classes."""
        if self._classes or self.task != "classification" or not self.label:
            return self._classes
        values = [np.unique(self.labels_of(table, slice(None))) for table in self.tables]
        found = np.unique(np.concatenate(values))
        if found.dtype.kind in "iu" and len(found) and found[0] >= 0 and found[-1] < 2**16:
            return tuple(map(str, range(int(found[-1]) + 1)))
        if found.dtype.kind not in "OUT":
            raise DataError(
                f"{self.tables[0].where}: labels of {self.label} are {found.dtype} from {found[:1]} to {found[-1:]}, "
                "expected classes 0, 1, ... or text; set source.task: regression, or list source.classes"
            )
        return tuple(map(str, found))

    @cached_property
    def schema(self) -> Schema:
        """Schema of features and label, or of the named columns."""
        if self.label and not self._given:
            features = self.columns["features"]
            if features.kind != "array":
                raise DataError(
                    f"{self.tables[0].where}: array {self.roles(self.tables[0])['features']} contains text, expected "
                    "numbers; list source.columns"
                )
            return Schema(
                feature_shape=features.shape,
                feature_dtype=features.dtype,
                task=self.task,
                classes=self.classes,
            )
        label = "int64" if self.task == "classification" else "float32"
        written = {name: str(column) for name, column in self.columns.items()}
        labels = {"labels": label} if self.label else {}
        return Schema(columns=written | labels, classes=self.classes if labels else ())

    @property
    def inferred(self) -> dict[str, Any]:
        """Arrays whose role, type or classes no setting names, and arrays left out."""
        first, found = self.tables[0], dict[str, Any]()
        if not self._given:
            roles = self.roles(first)
            found["columns"] = {
                name if name == of else f"{name}, the array {of}": str(self.columns[name])
                for name, of in roles.items()
            }
        if self.classes and not self._classes:
            found[f"classes, by the array {self.label}"] = list(self.classes)
        used = self._used(first)
        left = {n: str(array.dtype) for n, array in first.arrays.items() if n not in used}
        return found | ({"arrays left out": left} if left else {})

    # ---- rows

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, at most 64 MiB at a time. Unusable rows are skipped or rejected."""
        self.skipped.pop(shard, None)
        sizes = [table.num_rows for table in self.tables]
        for place, first, last in shard_slices(sizes, shard, self.num_shards):
            step = max(1, _BLOCK_BYTES // max(1, self._row_bytes))
            for start in range(first, last, step):
                rows = slice(start, min(start + step, last))
                table = Rows(self, shard, self.tables[place], rows).table()
                if len(table.ids):
                    yield table

    @cached_property
    def _row_bytes(self) -> int:
        return sum(column.item_bytes for column in self.columns.values())

    def values_of(self, table: ArrayTable, name: str, rows: slice) -> np.ndarray:
        """Return rows of an array.

        Raises:
            DataError: They cannot be read. The message names file and array.
        """
        try:
            values = np.asarray(table.arrays[name][rows])
        except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{table.where}: array {name} cannot be read ({reason}); {_REMEDY}"
            ) from None
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values

    def labels_of(self, table: ArrayTable, rows: slice) -> np.ndarray:
        """Return labels [N] as they are in the file.

        Raises:
            DataError: They cannot be read, or a row has several. The message names the file.
        """
        values = self.values_of(table, self.label, rows)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise DataError(
                f"{table.where}: rows of {self.label} have the shape {[*values.shape[1:]]}, expected one label per "
                "row; save the index of the class, as by argmax(axis=1)"
            )
        return values.astype(np.int64) if values.dtype.kind == "b" else values
