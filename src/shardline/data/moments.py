"""Moments of features: count, mean, sum of squared deviations, minimum and maximum of each.

Rows are summed block by block, while each block is in the processor's cache, as differences from the
mean of the first block. Sums have the correction of a two-pass algorithm and are merged in float64
(Chan, Golub and LeVeque, 1983). All operations are elementwise, in a fixed order and without BLAS,
so every machine computes the same bits.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from shardline.core.machine import num_cpus
from shardline.records.datasets import RecordedMoments, Summary

_Result = TypeVar("_Result")
KEYS = ("mean", "std", "min", "max")
_BLOCK_BYTES = 1 << 18  # a block and its differences fill half of a common L2 cache
_LEAST_ROWS, _MOST_ROWS = 64, 512
_PART_BYTES = 1 << 20  # of a wide block's features that are computed at once
_MANY_PARTS, _MOST_THREADS = 8, 4  # fewer parts take no longer than the start of threads
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

    def with_running(self, running: "RunningMoments") -> "Moments | None":
        """Return the moments of these rows together with running ones; None if those are not accurate.

        Wide rows are computed in parts that fit into the cache.
        """
        if not running.count:
            return self
        found = np.empty((4, len(running.low)))

        def merge(part: slice) -> bool:
            total = running.part(part).total()
            if total is not None:
                mine = Moments(self.count, *(of[part] for of in self._arrays()))
                for array, values in zip(found, mine.merge(total)._arrays(), strict=True):
                    array[part] = values
            return total is not None

        are_accurate = _by_part(merge, len(running.low), len(KEYS) * found.itemsize)
        return Moments(self.count + running.count, *found) if all(are_accurate) else None

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.mean, self.m2, self.low, self.high

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


class RunningMoments:
    """Moments of blocks of rows, computed in one pass.

    Args:
        dtype: type to compute in; by default the type of the first block, but at least float32.

    Attributes:
        count: number of rows.
        low: minimum [F] in the blocks' type; NaN if a row has NaN.
        high: maximum [F] in the blocks' type; NaN if a row has NaN.
    """

    def __init__(self, dtype: np.dtype[Any] | None = None) -> None:
        self._dtype = dtype
        self.count = 0
        self._shift = self._sum = self._squares = self.low = self.high = np.zeros(0)

    def add(self, block: np.ndarray) -> None:
        """Add one or more rows [N, F] of any number type."""
        is_first, (rows, features) = not self.count, block.shape
        dtype = self._dtype = self._dtype or np.result_type(block.dtype, np.float32)
        if is_first:
            self._shift, (self._sum, self._squares) = (
                np.empty(features, dtype),
                np.zeros((2, features)),
            )
            self.low, self.high = block[0].copy(), block[0].copy()
        self.count += rows

        def add(part: slice) -> None:
            self.part(part)._add(block[:, part], is_first=is_first)

        if block.size * dtype.itemsize < _PART_BYTES:
            self._add(block, is_first=is_first)
        else:
            _by_part(add, features, rows * dtype.itemsize)

    def part(self, part: slice) -> "RunningMoments":
        """Return the moments of some of the features, as views."""
        found = RunningMoments(self._dtype)
        found.count = self.count
        for name in ("_shift", "_sum", "_squares", "low", "high"):
            setattr(found, name, getattr(self, name)[part])
        return found

    def _add(self, block: np.ndarray, *, is_first: bool) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            dtype = self._shift.dtype
            values, own = (block, None) if block.dtype == dtype else 2 * (block.astype(dtype),)
            if is_first:
                self._shift[:] = np.add.reduce(values, axis=0) / dtype.type(len(block))
            # any shift near the mean works: the sum of the differences contains its error
            differences = np.subtract(values, self._shift, out=own)
            self._sum += _sum(differences)
            self._squares += _sum(np.multiply(differences, differences, out=differences))
        np.minimum(self.low, np.minimum.reduce(block, axis=0), out=self.low)
        np.maximum(self.high, np.maximum.reduce(block, axis=0), out=self.high)

    def total(self) -> Moments | None:
        """Return the moments of all rows; None if they are not accurate in the type.

        Squares leave float32's range long before the values do, and digits are lost if the shift is
        far from the mean.
        """
        moments = self.moments()
        least = np.maximum(self.count * 1e-30, 0.25 * self._squares)
        is_lost = moments.m2 < least
        if is_lost.any():
            is_lost &= moments.low < moments.high
        return None if is_lost.any() or not np.isfinite(moments.m2).all() else moments

    def moments(self) -> Moments:
        """Return the moments of all rows, even if they are not accurate."""
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self._sum / max(self.count, 1)
            m2 = mean**2
            np.subtract(self._squares, np.multiply(m2, self.count, out=m2), out=m2)
            np.maximum(m2, 0.0, out=m2)
            mean += self._shift
        # a rounding error instead of a constant's deviation of 0 would blow up the normalised value
        is_fixed = ~(low < high)
        if is_fixed.any():
            mean[is_fixed], m2[is_fixed] = low[is_fixed], 0.0
        return Moments(count=self.count, mean=mean, m2=m2, low=low, high=high)


def _by_part(
    function: Callable[[slice], _Result], features: int, feature_bytes: int
) -> list[_Result]:
    """Call a function for parts of wide rows that fit into the processor's cache, some at a time.

    No part has one feature of several, since NumPy would sum its rows in another order.
    """
    number = max(1, min(features * feature_bytes // _PART_BYTES, features // 64))
    edges = [features * part // number for part in range(number + 1)]
    parts = list(map(slice, edges[:-1], edges[1:]))
    if number < _MANY_PARTS:
        return list(map(function, parts))
    with ThreadPoolExecutor(min(_MOST_THREADS, num_cpus())) as threads:
        return list(threads.map(function, parts))


def rows_in_cache(features: int, dtype: np.dtype[Any]) -> int:
    """Return the number of rows in a block that fits into the processor's cache."""
    row_bytes = max(1, features * np.result_type(dtype, np.float32).itemsize)
    return min(max(_BLOCK_BYTES // row_bytes, _LEAST_ROWS), _MOST_ROWS) // _SUMMED * _SUMMED


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum rows [N, F], 32 or more to [F] float64, four times as fast by sums of 32 rows in their own type."""
    whole = len(values) // _SUMMED * _SUMMED
    if not whole:
        few: np.ndarray = np.add.reduce(values, axis=0)
        return few
    sums = np.add.reduce(values[:whole].reshape(-1, _SUMMED, values.shape[1]), axis=1)
    total: np.ndarray = np.add.reduce(sums, axis=0, dtype=np.float64)
    if whole < len(values):
        total += np.add.reduce(values[whole:], axis=0)
    return total
