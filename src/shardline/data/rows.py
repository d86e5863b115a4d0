"""The rows of one shard: read from a source, held to its schema, ordered by split."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.shard_format import COLUMNS, FEATURE_DTYPES, Layout
from shardline.data.sources import SPLITS, Schema, Source, Table
from shardline.data.splits import assign_splits
from shardline.data.statistics import Moments, RunningMoments, rows_in_cache

_BLOCK_BYTES = 4 << 20  # NumPy asks for huge pages from here on


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a shard as its file will hold them: train, validation, test.

    Attributes:
        columns: `features`, `labels` and `ids`, each in pieces that follow one another.
        counts: number of rows by split, in the order of the columns.
        layout: where the columns will lie in the file.
        train: moments of the train rows' features.
        class_counts: rows of each class by split; empty for regression.
    """

    columns: dict[str, list[np.ndarray]]
    counts: dict[str, int]
    layout: Layout
    train: Moments
    class_counts: dict[str, list[int]]


class Memory:
    """Blocks of memory for features, used again: new pages cost as much as what is put there."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def take(self, least: int) -> np.ndarray:
        """Return a block [bytes] uint8 of at least this size."""
        block = self._free.pop() if self._free else np.empty(_BLOCK_BYTES, np.uint8)
        return block if len(block) >= least else np.empty(least, np.uint8)

    def give_back(self, rows: Rows) -> None:
        """Use the memory of rows that nobody reads any more."""
        self._free += [piece.base for piece in rows.columns["features"] if piece.base is not None]


def read_rows(source: Source, shard: int, splits: Mapping[str, Any], memory: Memory) -> Rows:
    """Read a shard's rows.

    Each table is cut by split, checked and summarised in blocks that stay in
    the processor's cache, and can go before the source yields the next.

    Args:
        splits: the dataset's `splits`; the share of the rows by split, where
            the source's tables do not say each row's split themselves.
        memory: where the features come to lie.

    Raises:
        DataError: the source gave no rows, or rows that its schema does not
            allow; names source, shard and, where it is one row, that row's id.
    """
    schema, where = source.schema, f"source {type(source).__name__}: shard {shard}"
    parts = {split: _Part(schema, memory, is_summed=split == "train") for split in SPLITS}
    for given in source.iter_tables(shard):
        table = _read(given, schema, splits, where)
        for index, part in enumerate(parts.values()):
            part.append(table, np.flatnonzero(table["splits"] == index), where)
    columns = {
        name: [piece for part in parts.values() for piece in part.columns[name]] for name in COLUMNS
    }
    _check_ids(columns["ids"], where)
    return Rows(
        columns=columns,
        counts={split: sum(map(len, part.columns["ids"])) for split, part in parts.items()},
        layout=Layout.of(asdict(schema), sum(map(len, columns["ids"]))),
        train=parts["train"].moments,
        class_counts=_count_classes(parts, schema),
    )


class _Part:
    """The rows of one split, appended table by table.

    Attributes:
        columns: as in Rows.
        moments: of the features, if they are summed; else of no row.
    """

    def __init__(self, schema: Schema, memory: Memory, *, is_summed: bool) -> None:
        self.columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        self.moments = RunningMoments().moments()
        self._shape, self._dtype = schema.feature_shape, np.dtype(schema.feature_dtype)
        self._row_bytes = max(1, math.prod(self._shape) * self._dtype.itemsize)
        self._memory, self._is_summed = memory, is_summed
        self._block, self._filled = np.empty((0, *self._shape), self._dtype), 0

    def append(self, table: Mapping[str, np.ndarray], rows: np.ndarray, where: str) -> None:
        """Copy rows of a table; what their features need is done block by block, within the cache."""
        for name in ("labels", "ids"):
            self.columns[name].append(table[name][rows])
        features, running = table["features"], RunningMoments()
        step = rows_in_cache(math.prod(self._shape), self._dtype)
        is_finite = True
        for first in range(0, len(rows), step):
            chosen = rows[first : first + step]
            block = self._room(len(chosen))
            # any mode but "raise" lets take() write into `out` directly
            features.take(chosen, axis=0, out=block, mode="clip")
            if self._is_summed:
                running.add(block.reshape(len(block), -1))
            else:
                is_finite &= _is_finite(block)
        moments = running.total()
        if not (is_finite and _is_finite(running.low) and _is_finite(running.high)):
            raise _not_finite(features[rows], table["ids"][rows], where)
        moments = moments or Moments.exactly(features[rows].reshape(len(rows), -1))
        self.moments = self.moments.merge(moments)

    def _room(self, rows: int) -> np.ndarray:
        """Return memory for this many rows, behind the ones before where there is room."""
        pieces = self.columns["features"]
        if self._filled + rows > len(self._block):
            memory = self._memory.take(rows * self._row_bytes)
            whole = memory[: len(memory) // self._row_bytes * self._row_bytes]
            self._block, self._filled = whole.view(self._dtype).reshape(-1, *self._shape), 0
            pieces.append(self._block[:0])
        first, self._filled = self._filled, self._filled + rows
        pieces[-1] = self._block[: self._filled]
        return self._block[first : self._filled]


def _count_classes(parts: Mapping[str, _Part], schema: Schema) -> dict[str, list[int]]:
    if schema.task != "classification":
        return {}
    return {
        split: sum(
            (
                np.bincount(labels, minlength=len(schema.classes))
                for labels in part.columns["labels"]
            ),
            start=np.zeros(len(schema.classes), dtype=np.int64),
        ).tolist()
        for split, part in parts.items()
    }


def _read(
    table: Table, schema: Schema, splits: Mapping[str, Any], where: str
) -> dict[str, np.ndarray]:
    """Return a table's columns and `splits`, as arrays of the schema's shape."""
    if schema.feature_dtype not in FEATURE_DTYPES:
        raise DataError(
            f"{where}: its schema's feature_dtype is {schema.feature_dtype}, expected one of "
            f"{', '.join(FEATURE_DTYPES)}; convert the features to one of them"
        )
    columns = {
        "ids": _array("ids", table.ids, "int64", where),
        "features": _array("features", table.features, schema.feature_dtype, where),
        "labels": _array("labels", table.labels, schema.label_dtype, where),
    }
    if table.splits is not None:
        columns["splits"] = _array("splits", table.splits, "int64", where)
    elif splits.keys() >= set(SPLITS):
        columns["splits"] = assign_splits(columns["ids"], splits)
    else:
        raise DataError(
            f"{where} gave rows without a split, expected one for each row since splits is "
            f"{dict(splits)}; set `splits` of each Table, or give shares of the rows"
        )
    _check_shapes(columns, schema, where)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is found
        columns["features"] = np.ascontiguousarray(columns["features"], schema.feature_dtype)
        columns["labels"] = columns["labels"].astype(schema.label_dtype, copy=False)
    _check_labels(columns, schema, where)
    return columns


def _array(name: str, values: object, wanted: str, where: str) -> np.ndarray:
    """Return values as an array that can become the wanted type without loss of meaning."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(
            f"{where} gave {name} of different lengths, expected rows of one shape; "
            "pad or cut them in the source"
        ) from None
    is_float = np.dtype(wanted).kind == "f"  # may round; an integer may not wrap around
    if not np.can_cast(array.dtype, wanted, "same_kind" if is_float else "safe"):
        hint = {"O": " (ragged rows, or text among them?)", "f": " (a value missing?)"}
        raise DataError(
            f"{where} gave {name} of type {array.dtype}{hint.get(array.dtype.kind, '')}, expected {wanted}; "
            "convert them in the source, or fix its schema"
        )
    return array


def _check_shapes(columns: Mapping[str, np.ndarray], schema: Schema, where: str) -> None:
    rows = len(columns["ids"]) if columns["ids"].ndim else 0
    for name, array in columns.items():
        expected = (rows, *(schema.feature_shape if name == "features" else ()))
        if array.shape != expected:
            raise DataError(
                f"{where} gave {name} of shape {array.shape} with {rows} ids, expected {expected} by its "
                "schema; make all columns of a Table equally long, and its features of one shape"
            )
    outside = columns["splits"][~np.isin(columns["splits"], range(len(SPLITS)))]
    if outside.size:
        raise DataError(
            f"{where} gave split {outside[0]}, expected 0 to {len(SPLITS) - 1} for {', '.join(SPLITS)}; "
            "fix `splits` of its Table"
        )


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _not_finite(features: np.ndarray, ids: np.ndarray, where: str) -> DataError:
    row = ids[np.argwhere(~np.isfinite(features))[0][0]]
    return DataError(
        f"{where}: row id {row} holds a missing or infinite feature, expected a number that "
        f"{features.dtype} can hold; clean the source"
    )


def _check_labels(columns: Mapping[str, np.ndarray], schema: Schema, where: str) -> None:
    labels = columns["labels"]
    if not np.isfinite(labels).all():
        row = columns["ids"][~np.isfinite(labels)][0]
        raise DataError(
            f"{where}: row id {row} has a missing or infinite label, expected a number; clean the source"
        )
    if schema.task == "classification":
        _check_classes(labels, schema.classes, where)


def _check_ids(pieces: Sequence[np.ndarray], where: str) -> None:
    if not any(map(len, pieces)):
        raise DataError(f"{where} has no rows, expected at least one; lower the dataset's `shards`")
    values, counts = np.unique(np.concatenate(pieces), return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{where}: row id {values[counts > 1][0]} stands twice, expected each id once since it "
            "decides the row's split; number the rows"
        )


def _check_classes(labels: np.ndarray, classes: Iterable[str], where: str) -> None:
    last = len(tuple(classes)) - 1
    outside = labels[(labels < 0) | (labels > last)]
    if outside.size:
        raise DataError(
            f"{where}: label {outside[0]} is outside 0..{last}, expected a class's place in the "
            "schema; fix the labels or the schema's classes"
        )
