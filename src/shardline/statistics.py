"""Per-feature statistics that can be computed shard by shard and merged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Count, mean, sum of squared deviations, minimum and maximum of each feature.

    Attributes:
        count: number of rows.
        mean: [F] float64, as a list.
        m2: sum of squared deviations from the mean [F] float64.
        low: minimum [F].
        high: maximum [F].
    """

    count: int
    mean: list[float]
    m2: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def of(cls, features: np.ndarray) -> "Moments":
        """Compute the moments of features [N, F]."""
        if not len(features):
            return cls(0, [], [], [], [])
        values = features.astype(np.float64)
        mean = values.mean(axis=0)
        m2 = ((values - mean) ** 2).sum(axis=0)
        low, high = features.min(axis=0), features.max(axis=0)
        return cls(len(features), mean.tolist(), m2.tolist(), low.tolist(), high.tolist())

    @classmethod
    def merge(cls, parts: Sequence["Moments"]) -> "Moments":
        """Merge the moments of disjoint rows (Chan, Golub and LeVeque, 1979)."""
        parts = [part for part in parts if part.count]
        if not parts:
            return cls(0, [], [], [], [])
        count, mean, m2 = parts[0].count, np.array(parts[0].mean), np.array(parts[0].m2)
        for part in parts[1:]:
            total = count + part.count
            delta = np.array(part.mean) - mean
            mean = mean + delta * (part.count / total)
            m2 = m2 + np.array(part.m2) + delta**2 * (count * part.count / total)
            count = total
        low = np.min([part.low for part in parts], axis=0)
        high = np.max([part.high for part in parts], axis=0)
        return cls(count, mean.tolist(), m2.tolist(), low.tolist(), high.tolist())

    def summary(self) -> dict[str, Any]:
        """Return count, mean, standard deviation (population), minimum and maximum."""
        std = np.sqrt(np.array(self.m2) / max(self.count, 1)).tolist()
        return {
            "count": self.count,
            "mean": self.mean,
            "std": std,
            "min": self.low,
            "max": self.high,
        }
