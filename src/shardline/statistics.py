"""Per-feature statistics, computed while a shard is in memory and merged over all of them.

Means and deviations come from a corrected two-pass over blocks that stay in the
processor's cache, merged in float64 (Chan, Golub and LeVeque, 1983). All of it
is element by element in a fixed order, without BLAS, so that every machine
computes the same bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

_BLOCK_BYTES = 1 << 19  # half of a common L2 cache
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
        row_bytes = max(1, features.shape[1] * features.itemsize)
        step = min(max(_BLOCK_BYTES // row_bytes, _LEAST_ROWS), _MOST_ROWS)
        blocks = (features[first : first + step] for first in range(0, len(features), step))
        return reduce(cls.merge, map(cls._of_block, blocks), cls(0, *np.zeros((4, 0))))

    @classmethod
    def _of_block(cls, block: np.ndarray) -> "Moments":
        moments = cls._computed_in(np.result_type(block.dtype, np.float32), block)
        # squares leave float32's range long before the values do
        is_lost = (moments.m2 < len(block) * 1e-30) & (moments.low < moments.high)
        if np.isfinite(moments.m2).all() and not is_lost.any():
            return moments
        return cls._computed_in(np.dtype(np.float64), block)

    @classmethod
    def _computed_in(cls, dtype: np.dtype[Any], block: np.ndarray) -> "Moments":
        rows = len(block)
        with np.errstate(over="ignore", invalid="ignore"):
            # Any shift near the mean will do: what it misses is in the sum of the differences.
            shift = np.add.reduce(block, axis=0, dtype=dtype) / dtype.type(rows)
            differences = np.subtract(block, shift, dtype=dtype)
            missed = _sum(differences) / rows
            squares = np.multiply(differences, differences, out=differences)
            m2 = _sum(squares) - rows * missed**2
        low, high = (extreme(axis=0).astype(np.float64) for extreme in (block.min, block.max))
        # a rounding error for a constant's deviation would blow up its normalised value
        varies = low < high
        return cls(
            count=rows,
            mean=np.where(varies, shift.astype(np.float64) + missed, low),
            m2=np.where(varies, np.maximum(m2, 0.0), 0.0),
            low=low,
            high=high,
        )

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

    def to_json(self) -> dict[str, Any]:
        """Return a document that `from_json` reads without loss."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Moments":
        """Read what `to_json` wrote."""
        arrays = (np.array(document[key]) for key in ("mean", "m2", "low", "high"))
        return cls(document["count"], *arrays)

    def summary(self) -> dict[str, Any]:
        """Return count, mean, standard deviation (population), minimum and maximum."""
        return {
            "count": self.count,
            "mean": self.mean.tolist(),
            "std": np.sqrt(self.m2 / max(self.count, 1)).tolist(),
            "min": self.low.tolist(),
            "max": self.high.tolist(),
        }


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum rows [N, F] to [F] float64: 32 at a time in their own type, which is four times as fast."""
    whole = len(values) // _SUMMED * _SUMMED
    sums = np.add.reduce(values[:whole].reshape(-1, _SUMMED, values.shape[1]), axis=1)
    rest = np.add.reduce(values[whole:], axis=0, dtype=np.float64)
    total: np.ndarray = np.add.reduce(sums, axis=0, dtype=np.float64) + rest
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """What the manifest will say of the rows of consecutive shards.

    Attributes:
        first: number of the first shard.
        stop: number of the shard after the last.
        features: moments of the train rows' features.
        class_counts: rows of each class by split; empty for regression.
    """

    first: int
    stop: int
    features: Moments
    class_counts: dict[str, list[int]]

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of these shards and the ones that follow them."""
        counts = {
            split: [a + b for a, b in zip(mine, other.class_counts[split], strict=True)]
            for split, mine in self.class_counts.items()
        }
        features = self.features.merge(other.features)
        return Statistics(first=self.first, stop=other.stop, features=features, class_counts=counts)

    def to_json(self) -> dict[str, Any]:
        """Return a document that `from_json` reads without loss."""
        return {**vars(self), "features": self.features.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Statistics":
        """Read what `to_json` wrote."""
        return cls(**{**document, "features": Moments.from_json(document["features"])})


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
