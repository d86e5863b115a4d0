"""Statistics per feature, computed while a shard is in memory and merged over all shards.

Rows are summed block by block, while each block is in the processor's cache, as differences from the
mean of the first block. Sums have the correction of a two-pass algorithm and are merged in float64
(Chan, Golub and LeVeque, 1983). All operations are elementwise, in a fixed order and without BLAS,
so every machine computes the same bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from msgspec import UNSET

from shardline.data.table_summary import TableSummary, merge_tables
from shardline.records.datasets import (
    DatasetStatistics,
    FoldStatistics,
    PartStatistics,
    RecordedMoments,
    Summary,
)
from shardline_io.order.folds import split_of

KEYS = ("mean", "std", "min", "max")
_BLOCK_BYTES = 1 << 18  # a block and its differences fill half of a common L2 cache
_LEAST_ROWS, _MOST_ROWS = 64, 512
_SUMMED = 32  # the sum of so many rows in float32 is exact to 1e-6


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean, sum of squared deviations, minimum and maximum of each feature.

    Attributes:
        count: number of rows; if 0, the arrays are empty.
        mean: [F] float64.
        m2: sum of squared deviations from the mean [F] float64.
        low: minimum [F] float64.
        high: maximum [F] float64.
    """

    count: int
    mean: np.ndarray
    m2: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Moments":
        """Compute the moments of finite features [N, F] of any number type."""
        running, step = RunningMoments(), rows_in_cache(features.shape[1], features.dtype)
        for first in range(0, len(features), step):
            running.add(features[first : first + step])
        return running.total() or cls.exactly(features)

    @classmethod
    def exactly(cls, features: np.ndarray) -> "Moments":
        """Compute the moments in float64 throughout, each block relative to its own mean."""
        total, double = RunningMoments().moments(), np.dtype(np.float64)
        step = rows_in_cache(features.shape[1], double)
        for first in range(0, len(features), step):
            running = RunningMoments(double)
            running.add(features[first : first + step])
            total = total.merge(running.moments())
        return total

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of these rows together with other rows."""
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + delta * (other.count / count),
            m2=self.m2 + other.m2 + delta**2 * (self.count * other.count / count),
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def to_record(self) -> RecordedMoments:
        """Return the record of the moments, without loss."""
        arrays = {key: value.tolist() for key, value in vars(self).items() if key != "count"}
        return RecordedMoments(count=self.count, **arrays)

    @classmethod
    def of_record(cls, record: RecordedMoments) -> "Moments":
        """Read the record of moments; None becomes NaN, which JSON lacks, for sums beyond float64."""
        arrays = (record.mean, record.m2, record.low, record.high)
        return cls(record.count, *(np.array(one, dtype=np.float64) for one in arrays))

    def summary(self) -> "FeatureSummary":
        """Return mean, standard deviation and range."""
        std = np.sqrt(self.m2 / max(self.count, 1))
        return FeatureSummary(self.count, self.mean, std, self.low, self.high)


@dataclass(frozen=True, eq=False)
class FeatureSummary:
    """Count, and mean, population standard deviation, minimum and maximum of each feature [F] float64."""

    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray

    def to_record(self) -> Summary:
        """Return the record for a manifest."""
        return Summary(count=self.count, **{key: getattr(self, key).tolist() for key in KEYS})

    @classmethod
    def of_record(cls, record: Summary) -> "FeatureSummary":
        """Read the record of a manifest; None becomes NaN."""
        return cls(record.count, *(np.array(getattr(record, key), np.float64) for key in KEYS))

    def moments(self) -> Moments:
        """Return the moments from which the summary was computed."""
        return Moments(self.count, self.mean, self.std**2 * self.count, self.min, self.max)


ByColumn = dict[str, FeatureSummary]


def pooled(datasets: Sequence[ByColumn]) -> ByColumn:
    """Return the joint statistics of several datasets with the same columns."""
    if len(datasets) == 1:
        return datasets[0]
    return {
        name: reduce(Moments.merge, (of[name].moments() for of in datasets)).summary()
        for name in datasets[0]
    }


def merge_columns(
    moments: Mapping[str, Moments], others: Mapping[str, Moments]
) -> dict[str, Moments]:
    """Return the moments of rows together with other rows, by column."""
    return {name: of.merge(others[name]) for name, of in moments.items()}


class RunningMoments:
    """Moments of blocks of rows, computed in one pass.

    Args:
        dtype: type to compute in; by default the type of the first block, but at least float32.

    Attributes:
        low: minimum [F] in the blocks' type; NaN if a row has NaN.
        high: maximum [F] in the blocks' type; NaN if a row has NaN.
    """

    def __init__(self, dtype: np.dtype[Any] | None = None) -> None:
        self._dtype = dtype
        self._count = 0
        self._shift = self._sum = self._squares = self.low = self.high = np.zeros(0)

    def add(self, block: np.ndarray) -> None:
        """Add one or more rows [N, F] of any number type."""
        if not self._count:
            self._begin(block)
        self._count += len(block)
        with np.errstate(over="ignore", invalid="ignore"):
            # any shift near the mean works: the sum of the differences contains its error
            differences = np.subtract(block, self._shift, dtype=self._dtype)
            self._sum += _sum(differences)
            self._squares += _sum(np.multiply(differences, differences, out=differences))
        np.minimum(self.low, np.minimum.reduce(block, axis=0), out=self.low)
        np.maximum(self.high, np.maximum.reduce(block, axis=0), out=self.high)

    def _begin(self, block: np.ndarray) -> None:
        self._dtype = self._dtype or np.result_type(block.dtype, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add.reduce(block, axis=0, dtype=self._dtype)
            self._shift = total / self._dtype.type(len(block))
        self._sum, self._squares = np.zeros((2, block.shape[1]))
        self.low, self.high = block[0].copy(), block[0].copy()

    def total(self) -> Moments | None:
        """Return the moments of all rows; None if they are not accurate in the type.

        Squares leave float32's range long before the values do, and digits are lost if the shift is
        far from the mean.
        """
        moments = self.moments()
        lost = moments.m2 < np.maximum(self._count * 1e-30, 0.25 * self._squares)
        is_good = np.isfinite(moments.m2) & ~(lost & (moments.low < moments.high))
        return moments if is_good.all() else None

    def moments(self) -> Moments:
        """Return the moments of all rows, even if they are not accurate."""
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            missed = self._sum / max(self._count, 1)
            m2 = self._squares - self._count * missed**2
        # a rounding error instead of a constant's deviation of 0 would blow up the normalised value
        varies = low < high
        return Moments(
            count=self._count,
            mean=np.where(varies, self._shift.astype(np.float64) + missed, low),
            m2=np.where(varies, np.maximum(m2, 0.0), 0.0),
            low=low,
            high=high,
        )


def rows_in_cache(features: int, dtype: np.dtype[Any]) -> int:
    """Return the number of rows in a block that fits into the processor's cache."""
    row_bytes = max(1, features * np.result_type(dtype, np.float32).itemsize)
    return min(max(_BLOCK_BYTES // row_bytes, _LEAST_ROWS), _MOST_ROWS) // _SUMMED * _SUMMED


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum rows [N, F] to [F] float64, four times as fast by sums of 32 rows in their own type."""
    whole = len(values) // _SUMMED * _SUMMED
    sums = np.add.reduce(values[:whole].reshape(-1, _SUMMED, values.shape[1]), axis=1)
    total: np.ndarray = np.add.reduce(sums, axis=0, dtype=np.float64)
    if whole < len(values):
        total += np.add.reduce(values[whole:], axis=0)
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """Statistics of the rows in consecutive shards.

    Attributes:
        first: number of the first shard.
        stop: number of the last shard plus 1.
        moments: moments of the train rows by column; for a varying column, moments of its lengths.
            A table only has moments of its features.
        class_counts: number of rows of each class, by block; empty without classes.
        folds: with folds, moments by column of the rows of each fold to train on; `moments` are
            those of all folds.
        tables: what preprocessing is fitted on, by block; empty without preprocessing.
    """

    first: int
    stop: int
    moments: dict[str, Moments]
    class_counts: dict[str, list[int]]
    folds: tuple[dict[str, Moments], ...] = ()
    tables: dict[str, TableSummary] = field(default_factory=dict)

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of these shards together with the directly following ones."""
        counts = {
            split: [a + b for a, b in zip(mine, other.class_counts[split], strict=True)]
            for split, mine in self.class_counts.items()
        }
        return Statistics(
            first=self.first,
            stop=other.stop,
            moments=merge_columns(self.moments, other.moments),
            class_counts=counts,
            folds=tuple(map(merge_columns, self.folds, other.folds)),
            tables={block: of.merge(other.tables[block]) for block, of in self.tables.items()},
        )

    def train(self, fold: int | None = None) -> ByColumn:
        """Return the statistics of the train rows of a run, which are those of all folds but its own.

        Args:
            fold: fold that the run tests on.
        """
        others = [of for number, of in enumerate(self.folds) if number != fold]
        moments = self.moments if fold is None else reduce(merge_columns, others)
        return {name: of.summary() for name, of in moments.items()}

    def train_table(self, fold: int | None = None) -> TableSummary:
        """Return what the preprocessing of a run is fitted on: the train rows of all folds but its own."""
        return merge_tables(
            [of for block, of in self.tables.items() if split_of(block, fold) == "train"]
        )

    def to_record(self) -> PartStatistics:
        """Return the record of the statistics, without loss."""
        moments, *folds = (
            {name: of.to_record() for name, of in columns.items()}
            for columns in (self.moments, *self.folds)
        )
        return PartStatistics(
            first=self.first,
            stop=self.stop,
            class_counts=self.class_counts,
            **by_column(moments),
            folds=folds or UNSET,
            table={block: of.to_record() for block, of in self.tables.items()} or UNSET,
        )

    @classmethod
    def of_record(cls, record: PartStatistics) -> "Statistics":
        """Read the record of a part's statistics."""
        recorded = {"features": record.features} if record.features else record.columns or {}
        moments, *folds = (
            {name: Moments.of_record(of) for name, of in columns.items()}
            for columns in (recorded, *(record.folds or ()))
        )
        return cls(
            first=record.first,
            stop=record.stop,
            moments=moments,
            class_counts=record.class_counts,
            folds=tuple(folds),
            tables={name: TableSummary.of_record(of) for name, of in (record.table or {}).items()},
        )


def by_column(
    statistics: Mapping[str, RecordedMoments] | Mapping[str, Summary],
) -> dict[str, Any]:
    """Return the fields of a record for statistics by column: `features` for a table, else `columns`."""
    columns = dict(statistics)
    return columns if [*columns] == ["features"] else {"columns": columns}


def of_columns(record: DatasetStatistics | FoldStatistics) -> ByColumn:
    """Return the statistics by column in a manifest, of all folds or of one."""
    columns = {"features": record.features} if record.features else record.columns or {}
    return {name: FeatureSummary.of_record(of) for name, of in columns.items()}


def merge_siblings(items: Iterable[Statistics]) -> list[Statistics]:
    """Merge shards as the leaves of a binary tree: 0 with 1, 2 with 3, both pairs, and so on.

    Sums of floats depend on their order. The tree only depends on the numbers of the shards, so the
    manifest does not depend on the split into parts. A part of n shards keeps at most 2 log2(n) items.

    Args:
        items: statistics of consecutive shards, in order.
    """
    merged: list[Statistics] = []
    for item in items:
        merged.append(item)
        while len(merged) > 1 and _are_siblings(*merged[-2:]):
            right = merged.pop()
            merged.append(merged.pop().merge(right))
    return merged


def merge_all(items: Sequence[Statistics]) -> Statistics:
    """Merge the statistics of all shards, in order, into one."""
    return reduce(Statistics.merge, merge_siblings(items))


def _are_siblings(left: Statistics, right: Statistics) -> bool:
    size = right.stop - right.first
    return left.stop - left.first == size and left.first % (2 * size) == 0
