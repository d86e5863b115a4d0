"""The base class of data sources, and the tables of rows that they yield."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import UNSET

from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.found_files import unreadable
from shardline.data.columns import Column, parse_columns
from shardline.records.datasets import DatasetSchema
from shardline.records.preprocessing import Preprocessing
from shardline_io.column_names import IDS, WEIGHT

UNKNOWN_LABEL = "one of source.classes"  # in messages on a label that is no class


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Description of a row: either features and a label (a table), or named columns.

    Attributes:
        columns: Type of each column by name, such as `{"tokens": "int32[*]", "caption": "text?"}`.
            `shardline.data.columns` lists the types. Empty for a table.
        feature_shape: Shape of a table row's features, without the batch dimension.
        feature_dtype: NumPy name of the stored type of a table's features.
        task: Task of a table: `classification` (int64 labels 0..C-1), `regression` (float32 labels) or
            `multilabel` (labels [T] of 0 and 1).
        classes: Class names in label order. With `columns`, the classes of the integer column `labels`.
        categories: Number of indices of each column of `categories`, an `int64[C]` column; 0 is unknown.
        preprocessing: How `numbers`, `gaps` and `codes` among the columns become features when they are read.
        targets: Names of the numbers or flags in a row's labels [T], for `regression` of several numbers
            and for `multilabel`.
        weighted: Whether rows have weights, in a column `weight` of one float per row, at least 0.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    feature_shape: tuple[int, ...] = ()
    feature_dtype: str = "float32"
    task: Literal["classification", "regression", "multilabel"] = "classification"
    classes: tuple[str, ...] = ()
    categories: Mapping[str, int] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    targets: tuple[str, ...] = ()
    weighted: bool = False

    @property
    def label_dtype(self) -> str:
        """NumPy name of the type of a table's labels."""
        return {"classification": "int64", "multilabel": "uint8"}.get(self.task, "float32")

    def record(self) -> DatasetSchema:
        """Return the `schema` record of a manifest, with column types in canonical spelling.

        Raises:
            DataError: A column name or type is not allowed. The message names it.
        """
        classes = [*self.classes]
        written_columns = self.columns or self._as_columns()
        if not written_columns:
            return DatasetSchema(
                task=self.task,
                classes=classes,
                feature_shape=[*self.feature_shape],
                feature_dtype=self.feature_dtype,
            )
        columns = parse_columns(written_columns)
        labels = columns.get("labels")
        is_scalar = labels is not None and not (labels.varies or labels.shape or labels.optional)
        kind = np.dtype(labels.dtype).kind if labels and is_scalar else ""
        if self.classes and kind not in ("i", "u"):
            raise DataError(
                f"a schema has {len(self.classes)} classes and labels={labels}, expected a column named labels with "
                'one integer per row; add "labels": "int64" to the columns, or remove the classes'
            )
        task = "classification" if self.classes else "regression" if kind == "f" else "none"
        written = {name: str(column) for name, column in columns.items()}
        self._check_further(columns)
        return DatasetSchema(
            task=self.task if self.targets else task,
            classes=classes,
            columns=written,
            categories=dict(self.categories) or UNSET,
            targets=[*self.targets] or UNSET,
            weighted=self.weighted or UNSET,
        )

    def _as_columns(self) -> dict[str, str]:
        """Return a table as columns if it has several labels per row or weights; else an empty dict."""
        if not (self.targets or self.weighted or self.task == "multilabel"):
            return {}
        shape = f"[{','.join(map(str, self.feature_shape))}]" if self.feature_shape else ""
        label = self.label_dtype + (f"[{len(self.targets)}]" if self.targets else "")
        columns = {"features": self.feature_dtype + shape, "labels": label}
        return columns | ({WEIGHT: "float32"} if self.weighted else {})

    def _check_further(self, columns: Mapping[str, Column]) -> None:
        """Reject targets and weights that do not match the columns."""
        size, labels, weight = len(self.targets), columns.get("labels"), columns.get(WEIGHT)
        if (self.task == "multilabel" or size) and (
            not size or self.task == "classification" or labels is None or labels.varies
            or labels.optional or labels.kind != "array" or labels.shape != (size,)
        ):  # fmt: skip
            raise DataError(
                f"a schema has task={self.task}, {size} targets and labels={labels}, expected regression or multilabel "
                "with the names of all labels in `targets`, and a column `labels` of that many numbers such as "
                f"float32[{size or 2}]; correct the schema"
            )
        is_float = weight is not None and np.dtype(weight.dtype).kind == "f"
        is_one = weight is not None and not (weight.shape or weight.varies or weight.optional)
        if self.weighted and not (is_float and is_one):
            raise DataError(
                f"a schema is weighted and has {WEIGHT}={weight}, expected one number per row; "
                f'add "{WEIGHT}": "float32" to the columns, or remove weighted=True'
            )


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Values of a varying column: the values of all rows, concatenated.

    Attributes:
        values: Values [total, *shape].
        offsets: Row boundaries [N + 1] int64, starting at 0. Row i is values[offsets[i]:offsets[i + 1]].
    """

    values: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Values of an optional column, with a mask of the rows that have a value.

    Attributes:
        values: Values in the form of a required column. A row without a value has zeros,
            or no elements if the column varies.
        present: Mask [N] bool: True for a row with a value.
    """

    values: "np.ndarray | Ragged"
    present: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Table:
    """A block of N rows.

    Attributes:
        ids: Row ids [N] int64, unique in the dataset. The id decides the row's split.
        features: Features [N, *feature_shape] of a table.
        labels: Labels [N] of a table.
        columns: Named columns, in any order. A fixed column is an array [N, *shape]. A varying
            column is a `Ragged` or a list of N arrays, bytes or texts. An optional column is a
            `Masked`, or a list with None for each row without a value.
        splits: Split of each row [N] int64, as an index into SPLITS, if the source knows it from a
            column or a file. None: the hash of the id decides.
        groups: Key of each row's group [N] int64. Only read if `splits.group` is set. None: the column with
            that name contains the groups, as whole numbers or texts.
        texts: Text of each code in the column `codes`, by column of categories.
        strata: Key of each row's class [N] int64 for `splits.stratify`, or None like `groups`.
        times: Time of each row [N] float64 for `splits.time`, or None: the column contains numbers.
    """

    ids: np.ndarray
    features: np.ndarray | None = None
    labels: np.ndarray | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    splits: np.ndarray | None = None
    groups: np.ndarray | None = None
    texts: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    strata: np.ndarray | None = None
    times: np.ndarray | None = None

    @property
    def given(self) -> dict[str, Any]:
        """All columns except the ids, by name."""
        table = {"features": self.features, "labels": self.labels}
        return {name: of for name, of in table.items() if of is not None} | dict(self.columns)


class Source(ABC):
    """Base class of data sources, which split rows into shards that can be read in any order.

    To use a subclass, set `datasets.<name>.source.type` to its import path. The constructor
    gets `source.options` as keyword arguments, in addition to the arguments below.

    Args:
        num_shards: Number of shards in the dataset.
        files: Resolved paths of `source.files`, sorted.

    Attributes:
        labels_optional: Whether the files may lack labels, as files to predict do. The
            labels are zeros in that case.
        skipped: One sentence per skipped row or file, by shard. A shard's list is filled when the
            shard is read. Empty unless `source.on_bad` is `skip`.
        not_read: Count and first names of files beside the source's files that are not read, by reason.
    """

    labels_optional: ClassVar[bool] = False

    def __init__(
        self, *, num_shards: int, files: Sequence[Path | str] = (), **options: Any
    ) -> None:
        if options:
            names = ", ".join(options)
            raise DataError(
                f"source {type(self).__name__} has no option named {names}; remove it from source.options, or "
                "add it to the arguments of the source's __init__"
            )
        self.num_shards = num_shards
        self.files = tuple(map(Path, files))
        self.skipped: dict[int, list[str]] = {}
        self.not_read: Mapping[str, Any] = {}

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """Schema of the rows."""

    @abstractmethod
    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of one shard, in blocks that fit in memory.

        A shard must have the same rows in every process, whatever was read before.
        """

    def iter_rows(self, shard: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of one shard as dicts of values by column, with the row id as `ids`."""
        for table in self.iter_tables(shard):
            for place, row in enumerate(table.ids):
                yield {IDS: int(row)} | {n: row_of(of, place) for n, of in table.given.items()}

    @property
    def content_digest(self) -> str:
        """Digest of everything that the rows are read from: by default, the bytes of the files in order.

        The digest equals `combine_digests` of the values under `source` in the identity
        document, unless the data changed.

        Raises:
            DataError: A file cannot be read. The message names it.
        """
        return combine_digests(file_digests(self.files))

    @property
    def has_labels(self) -> bool:
        """Whether the files contain labels. Only read if `labels_optional` is set."""
        return True

    @property
    def inferred(self) -> dict[str, Any]:
        """Facts inferred from the files instead of settings, by name: numbers, texts, lists or tables."""
        return {}

    @property
    def reference(self) -> dict[str, Any] | None:
        """Best possible value of a metric, if it is known."""
        return None


def row_of(values: Any, place: int) -> Any:
    """Return the value of a row in a column of a `Table`."""
    if isinstance(values, Masked):
        return row_of(values.values, place) if values.present[place] else None
    if isinstance(values, Ragged):
        return values.values[values.offsets[place] : values.offsets[place + 1]]
    return values[place]


def shard_range(num_rows: int, shard: int, num_shards: int) -> range:
    """Return the row numbers of one shard when rows are split into almost equal shards."""
    return range(num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards)


def shard_slices(
    sizes: Sequence[int], shard: int, num_shards: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of files in a shard, as (file index, first, last) with `last` excluded.

    Args:
        sizes: Size of each file, in rows or bytes.
    """
    wanted, before = shard_range(sum(sizes), shard, num_shards), 0
    for index, size in enumerate(sizes):
        first, last = max(wanted.start - before, 0), min(wanted.stop - before, size)
        before += size
        if first < last:
            yield index, first, last


def combine_digests(digests: Iterable[str]) -> str:
    """Return the SHA-256 of several digests, in order, as 64 hex digits."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def file_digests(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of each file, as 64 hex digits.

    Raises:
        DataError: A file cannot be read. The message names it.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter lock
        return list(pool.map(_file_sha256, paths))


def _file_sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from None
