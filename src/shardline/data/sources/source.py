"""The interface between where rows come from and the shards they are cut into."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.found_files import unreadable
from shardline.data.columns import parse_columns
from shardline.records.datasets import DatasetSchema
from shardline_io.column_names import IDS


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What one row looks like: a table's features and label, or any named columns.

    Attributes:
        columns: type of each column by name, as `shardline.data.columns` lists them, such as
            `{"tokens": "int32[*]", "caption": "text?"}`; empty for a table.
        feature_shape: a table's shape of a row's features, without the batch dimension.
        feature_dtype: NumPy name of these features' type, as stored.
        task: a table's: `classification` (int64 labels 0..C-1) or `regression` (float32 labels).
        classes: class names, in label order; with `columns`, those of an integer column `labels`.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    feature_shape: tuple[int, ...] = ()
    feature_dtype: str = "float32"
    task: Literal["classification", "regression"] = "classification"
    classes: tuple[str, ...] = ()

    @property
    def label_dtype(self) -> str:
        """NumPy name of the type of a table's labels."""
        return "int64" if self.task == "classification" else "float32"

    def record(self) -> DatasetSchema:
        """Return the `schema` of a manifest, with each column in its one spelling.

        Raises:
            DataError: a name or a type is not allowed; the message names it.
        """
        classes = [*self.classes]
        if not self.columns:
            return DatasetSchema(
                task=self.task,
                classes=classes,
                feature_shape=[*self.feature_shape],
                feature_dtype=self.feature_dtype,
            )
        columns = parse_columns(self.columns)
        labels = columns.get("labels")
        is_scalar = labels is not None and not (labels.varies or labels.shape or labels.optional)
        kind = np.dtype(labels.dtype).kind if labels and is_scalar else ""
        if self.classes and kind not in ("i", "u"):
            raise DataError(
                f"a schema has {len(self.classes)} classes and labels={labels}, expected a column labels of one "
                'integer for each row; add "labels": "int64" to its columns, or leave the classes out'
            )
        task = "classification" if self.classes else "regression" if kind == "f" else "none"
        written = {name: str(column) for name, column in columns.items()}
        return DatasetSchema(task=task, classes=classes, columns=written)


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Values of a varying column, of all rows one after another.

    Attributes:
        values: [total, *shape].
        offsets: [N + 1] int64, from 0 on; row i has values[offsets[i]:offsets[i + 1]].
    """

    values: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Values of an optional column, and which rows have one.

    Attributes:
        values: as of a column that is not optional; zeros for a row without a value, and none
            where the column varies.
        present: [N] bool.
    """

    values: "np.ndarray | Ragged"
    present: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Table:
    """A block of N rows.

    Attributes:
        ids: row ids [N] int64, unique in the dataset; they decide a row's split.
        features: [N, *feature_shape], of a table.
        labels: [N], of a table.
        columns: the columns of a schema that names them, in any order. A fixed one is an array
            [N, *shape]; a varying one a list of N arrays, of N bytes or texts, or a `Ragged`. In a
            list of an optional one, None stands for a row without a value; else it is a `Masked`.
        splits: each row's split [N] int64, as an index into SPLITS, where the
            source knows it (a column, the file); None leaves it to the id's hash.
    """

    ids: np.ndarray
    features: np.ndarray | None = None
    labels: np.ndarray | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    splits: np.ndarray | None = None

    @property
    def given(self) -> dict[str, Any]:
        """All columns but the ids, by name."""
        table = {"features": self.features, "labels": self.labels}
        return {name: of for name, of in table.items() if of is not None} | dict(self.columns)


class Source(ABC):
    """A source of rows, cut into shards that can be read in any order.

    A subclass is named by import path in `datasets.<name>.source.type`; its
    `source.options` are passed to the constructor beside the arguments below.

    Args:
        num_shards: shards that the dataset is cut into.
        files: the resolved `source.files`, sorted.

    Attributes:
        labels_optional: whether the files may hold no labels, as those that a prediction is about; rows
            get zeros as labels then.
        skipped: by shard, one sentence for each row or file that was left out
            when the shard was read; empty unless `source.on_bad` is `skip`.
        not_read: by reason, count and first names of what lies beside the files and is not read.
    """

    labels_optional: ClassVar[bool] = False

    def __init__(
        self, *, num_shards: int, files: Sequence[Path | str] = (), **options: Any
    ) -> None:
        if options:
            names = ", ".join(options)
            raise DataError(
                f"source {type(self).__name__} takes no option named {names}; remove it from source.options, or "
                "name it in the source's __init__"
            )
        self.num_shards = num_shards
        self.files = tuple(map(Path, files))
        self.skipped: dict[int, list[str]] = {}
        self.not_read: Mapping[str, Any] = {}

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """What one row looks like."""

    @abstractmethod
    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of one shard, in blocks that fit in memory.

        The same shard gives the same rows, whoever asks and in whatever order.
        """

    def iter_rows(self, shard: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of one shard one at a time, for a look at them: a value by column, and the id as `ids`."""
        for table in self.iter_tables(shard):
            for place, row in enumerate(table.ids):
                yield {IDS: int(row)} | {n: _row_of(of, place) for n, of in table.given.items()}

    @property
    def content_digest(self) -> str:
        """One digest of all that the rows are read from: here, of the files' bytes in their order.

        It equals `combine_digests` of the values that the identity document
        holds under `source`, as long as nothing changed since.

        Raises:
            DataError: a file cannot be read; the message names it.
        """
        return combine_digests(file_digests(self.files))

    @property
    def has_labels(self) -> bool:
        """Whether the files hold the labels; asked where `labels_optional`."""
        return True

    @property
    def inferred(self) -> dict[str, Any]:
        """What is found in the files and set by no setting, by name: numbers, texts, lists or tables of these."""
        return {}

    @property
    def reference(self) -> dict[str, Any] | None:
        """What a perfect model would reach, where that is known."""
        return None


def _row_of(values: Any, place: int) -> Any:
    if isinstance(values, Masked):
        return _row_of(values.values, place) if values.present[place] else None
    if isinstance(values, Ragged):
        return values.values[values.offsets[place] : values.offsets[place + 1]]
    return values[place]


def shard_range(num_rows: int, shard: int, num_shards: int) -> range:
    """Return the rows of one shard when a table is cut into almost equal pieces."""
    return range(num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards)


def shard_slices(
    sizes: Sequence[int], shard: int, num_shards: int
) -> Iterator[tuple[int, int, int]]:
    """Yield which part of which file is in a shard: the file's place, and its [first, last).

    Args:
        sizes: what is to be cut of each file, in rows or bytes.
    """
    wanted, before = shard_range(sum(sizes), shard, num_shards), 0
    for index, size in enumerate(sizes):
        first, last = max(wanted.start - before, 0), min(wanted.stop - before, size)
        before += size
        if first < last:
            yield index, first, last


def combine_digests(digests: Iterable[str]) -> str:
    """Return the SHA-256 of several digests in their order, as 64 hex digits."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def file_digests(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of some files, as 64 hex digits each.

    Raises:
        DataError: a file cannot be read; the message names it.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter lock
        return list(pool.map(_file_sha256, paths))


def _file_sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from None
