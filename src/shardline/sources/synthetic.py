"""Rows drawn from a known logistic model, any number of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardline.sources.base import Schema, Source, Table

_BLOCK_ROWS = 4096
_REFERENCE_ROWS = 200_000


class Synthetic(Source):
    """Standard normal features; P(label = 1) is the logistic of a true weighting.

    Numbers come from Philox, a counter-based generator keyed by (seed, shard),
    so shard k is the same whichever job writes it (Salmon et al., SC 2011).

    Args:
        num_shards: shards that the dataset is cut into.
        rows_per_shard: rows in each shard.
        features: float32 features of a row.
        seed: seed of features and weights.
        signal: length of the weight vector; the logit's standard deviation.
    """

    def __init__(
        self, *, num_shards: int, rows_per_shard: int, features: int, seed: int = 0,
        signal: float = 3.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_shards=num_shards, **options)
        self.rows_per_shard = rows_per_shard
        self.num_features = features
        self.seed = seed
        self.signal = signal

    @property
    def schema(self) -> Schema:
        """A flat row of floats, two classes."""
        return Schema(feature_shape=(self.num_features,), classes=("0", "1"))

    @property
    def weights(self) -> np.ndarray:
        """The true weights [features] float32, of length `signal`."""
        weights = self._generator(shard=-1).standard_normal(self.num_features, dtype=np.float32)
        return (weights * (self.signal / np.linalg.norm(weights))).astype(np.float32)

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows in blocks of at most 4,096."""
        generator, weights = self._generator(shard), self.weights
        for first in range(0, self.rows_per_shard, _BLOCK_ROWS):
            rows = min(_BLOCK_ROWS, self.rows_per_shard - first)
            features = generator.standard_normal((rows, self.num_features), dtype=np.float32)
            chance = generator.random(rows, dtype=np.float32)
            labels = (chance < 1 / (1 + np.exp(-features @ weights))).astype(np.int64)
            start = shard * self.rows_per_shard + first
            yield Table(
                ids=np.arange(start, start + rows, dtype=np.int64), features=features, labels=labels
            )

    @property
    def reference(self) -> dict[str, Any]:
        """Accuracy of the true weights: the mean of max(p, 1 - p) over the logit's distribution."""
        logits = self.signal * self._generator(shard=-2).standard_normal(_REFERENCE_ROWS)
        value = float(np.mean(1 / (1 + np.exp(-np.abs(logits)))))
        return {
            "metric": "accuracy",
            "value": round(value, 4),
            "meaning": "accuracy of the model that drew the labels",
        }

    def _generator(self, shard: int) -> np.random.Generator:
        # keys are unsigned: -1 and -2 become the two largest, which no shard has
        key = np.array([self.seed, shard % 2**64], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))
