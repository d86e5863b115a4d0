"""Per-feature statistics, computed while a shard is in memory and merged over all of them.

Rows are summed as differences from the mean of the first of them, block by block
while each is in the processor's cache, with the correction of a two-pass, and
merged in float64 (Chan, Golub and LeVeque, 1983). All of it is element by
element in a fixed order, without BLAS, so that every machine computes the same
bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from shardline.records.datasets import DatasetStatistics, PartStatistics, RecordedMoments, Summary

KEYS = ("mean", "std", "min", "max")
_BLOCK_BYTES = 1 << 18  # with its differences half of a common L2 cache
_LEAST_ROWS, _MOST_ROWS = 64, 512
_SUMMED = 32  # rows whose sum in float32 is still exact to 1e-6


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean, sum of squared deviations, minimum and maximum of each feature.

    Attributes:
        count: number of rows; of none, the arrays are empty.
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
        """Compute them in float64 throughout, each block from its own mean."""
        total, double = RunningMoments().moments(), np.dtype(np.float64)
        step = rows_in_cache(features.shape[1], double)
        for first in range(0, len(features), step):
            running = RunningMoments(double)
            running.add(features[first : first + step])
            total = total.merge(running.moments())
        return total

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of these rows and the other, disjoint ones."""
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
        """Return a record that `of_record` reads without loss."""
        arrays = {key: value.tolist() for key, value in vars(self).items() if key != "count"}
        return RecordedMoments(count=self.count, **arrays)

    @classmethod
    def of_record(cls, record: RecordedMoments) -> "Moments":
        """Read what `to_record` gave; None is NaN: sums of squares beyond float64, for which JSON has nothing."""
        arrays = (record.mean, record.m2, record.low, record.high)
        return cls(record.count, *(np.array(one, dtype=np.float64) for one in arrays))

    def summary(self) -> "FeatureSummary":
        """Return mean, standard deviation and range."""
        std = np.sqrt(self.m2 / max(self.count, 1))
        return FeatureSummary(self.count, self.mean, std, self.low, self.high)


@dataclass(frozen=True, eq=False)
class FeatureSummary:
    """Count, and of each feature mean, standard deviation (population), minimum and maximum [F] float64."""

    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray

    def to_record(self) -> Summary:
        """Return the record that a manifest holds."""
        return Summary(count=self.count, **{key: getattr(self, key).tolist() for key in KEYS})

    @classmethod
    def of_record(cls, record: Summary) -> "FeatureSummary":
        """Read what `to_record` gave; None is NaN."""
        return cls(record.count, *(np.array(getattr(record, key), np.float64) for key in KEYS))

    def moments(self) -> Moments:
        """Return the moments that these were of."""
        return Moments(self.count, self.mean, self.std**2 * self.count, self.min, self.max)


ByColumn = dict[str, FeatureSummary]


def pooled(datasets: Sequence[ByColumn]) -> ByColumn:
    """Return the statistics of the rows of several datasets, each of which has the same columns."""
    if len(datasets) == 1:
        return datasets[0]
    return {
        name: reduce(Moments.merge, (of[name].moments() for of in datasets)).summary()
        for name in datasets[0]
    }


class RunningMoments:
    """Moments of blocks of rows, each of which is seen once.

    Args:
        dtype: type to compute in; that of the first block if None, float32 at least.

    Attributes:
        low: minimum [F] of the blocks' type; NaN where a row has one.
        high: maximum [F].
    """

    def __init__(self, dtype: np.dtype[Any] | None = None) -> None:
        self._dtype = dtype
        self._count = 0
        self._shift = self._sum = self._squares = self.low = self.high = np.zeros(0)

    def add(self, block: np.ndarray) -> None:
        """Add rows [N, F] of any number type, at least one."""
        if not self._count:
            self._begin(block)
        self._count += len(block)
        with np.errstate(over="ignore", invalid="ignore"):
            # any shift near the mean will do: what it misses is in the sum of the differences
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
        """Return the moments of all rows; None if they left what the type can hold.

        Squares leave float32's range long before the values do, and digits are
        lost where the shift turned out to be far from the mean.
        """
        moments = self.moments()
        lost = moments.m2 < np.maximum(self._count * 1e-30, 0.25 * self._squares)
        is_good = np.isfinite(moments.m2) & ~(lost & (moments.low < moments.high))
        return moments if is_good.all() else None

    def moments(self) -> Moments:
        """Return the moments of all rows as they were summed, whatever was lost."""
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            missed = self._sum / max(self._count, 1)
            m2 = self._squares - self._count * missed**2
        # a rounding error for a constant's deviation would blow up its normalised value
        varies = low < high
        return Moments(
            count=self._count,
            mean=np.where(varies, self._shift.astype(np.float64) + missed, low),
            m2=np.where(varies, np.maximum(m2, 0.0), 0.0),
            low=low,
            high=high,
        )


def rows_in_cache(features: int, dtype: np.dtype[Any]) -> int:
    """Return how many rows of this many features a block has that is summed within the cache."""
    row_bytes = max(1, features * np.result_type(dtype, np.float32).itemsize)
    return min(max(_BLOCK_BYTES // row_bytes, _LEAST_ROWS), _MOST_ROWS) // _SUMMED * _SUMMED


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum rows [N, F] to [F] float64: 32 at a time in their own type, which is four times as fast."""
    whole = len(values) // _SUMMED * _SUMMED
    sums = np.add.reduce(values[:whole].reshape(-1, _SUMMED, values.shape[1]), axis=1)
    total: np.ndarray = np.add.reduce(sums, axis=0, dtype=np.float64)
    if whole < len(values):
        total += np.add.reduce(values[whole:], axis=0)
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """What the manifest will say of the rows of consecutive shards.

    Attributes:
        first: number of the first shard.
        stop: number of the shard after the last.
        moments: of the train rows, by column; of a varying column those of its lengths. A table has
            those of its features alone.
        class_counts: rows of each class by split; empty where there are no classes.
    """

    first: int
    stop: int
    moments: dict[str, Moments]
    class_counts: dict[str, list[int]]

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of these shards and the ones that follow them."""
        counts = {
            split: [a + b for a, b in zip(mine, other.class_counts[split], strict=True)]
            for split, mine in self.class_counts.items()
        }
        moments = {name: of.merge(other.moments[name]) for name, of in self.moments.items()}
        return Statistics(first=self.first, stop=other.stop, moments=moments, class_counts=counts)

    def to_record(self) -> PartStatistics:
        """Return a record that `of_record` reads without loss."""
        moments = {name: of.to_record() for name, of in self.moments.items()}
        return PartStatistics(
            first=self.first, stop=self.stop, class_counts=self.class_counts, **by_column(moments)
        )

    @classmethod
    def of_record(cls, record: PartStatistics) -> "Statistics":
        """Read what `to_record` gave."""
        moments = {"features": record.features} if record.features else record.columns or {}
        return cls(
            first=record.first,
            stop=record.stop,
            moments={name: Moments.of_record(of) for name, of in moments.items()},
            class_counts=record.class_counts,
        )


def by_column(
    statistics: Mapping[str, RecordedMoments] | Mapping[str, Summary],
) -> dict[str, Any]:
    """Return the fields of a record that has statistics by column: a table's features by themselves."""
    columns = dict(statistics)
    return columns if [*columns] == ["features"] else {"columns": columns}


def of_columns(record: DatasetStatistics) -> ByColumn:
    """Return the statistics by column that a manifest holds itself."""
    columns = {"features": record.features} if record.features else record.columns or {}
    return {name: FeatureSummary.of_record(of) for name, of in columns.items()}


def merge_siblings(items: Iterable[Statistics]) -> list[Statistics]:
    """Merge shards as the leaves of a binary tree: 0 with 1, 2 with 3, both pairs, and so on.

    Sums of floats depend on their order. The tree's is that of the shards'
    numbers alone, so that the manifest is the same however the shards were cut
    into parts, and a part of n shards still keeps at most 2 log2(n) items.

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
