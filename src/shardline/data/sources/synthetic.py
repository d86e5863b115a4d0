"""Source of random rows from a known logistic model."""

from collections.abc import Callable, Iterator
from functools import cache
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np

from shardline.data.sources.source import Schema, Source, Table

_TABLE_NUMBERS = 1 << 22
_CHUNK_NUMBERS = 1 << 16  # with the table and the indices, what a common L2 cache holds
_WORD_BITS = 16
_WORDS = 1 << _WORD_BITS


class Synthetic(Source):
    """Rows with standard normal features; P(label = 1) is a logistic function of their weighted sum.

    Each 16-bit word of Philox selects one of 65,536 pairs of normal quantiles. This is
    eight times as fast as drawing normals (measured: 2.1 against 0.25 GB/s). The rows are
    the same on every machine, since only additions and multiplications in a fixed order
    remain. A feature has one of 65,536 values up to +-4.3. Two neighbouring features are a
    point of a Hammersley set, and their correlation is 0.001. Philox is counter-based and
    keyed by (seed, shard), so a shard does not depend on the job that writes it
    (Salmon et al., SC 2011).

    Args:
        num_shards: Number of shards in the dataset.
        rows_per_shard: Number of rows in each shard.
        features: Number of float32 features in a row.
        seed: Seed of features and weights.
        signal: Length of the weight vector, which is the standard deviation of the logit.
    """

    def __init__(
        self, *, num_shards: int, rows_per_shard: int = 10_000, features: int = 1000, seed: int = 0,
        signal: float = 3.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_shards=num_shards, **options)
        self.rows_per_shard = rows_per_shard
        self.num_features = features
        self.seed = seed
        self.signal = signal

    @property
    def schema(self) -> Schema:
        """Schema: `features` floats, two classes."""
        return Schema(feature_shape=(self.num_features,), classes=("0", "1"))

    @property
    def weights(self) -> np.ndarray:
        """True weights [features] float32, with norm `signal`."""
        # keys are unsigned: -1 becomes the largest number, which is never a shard
        words = _draw(self._bits(shard=-1), self._pairs)
        weights = _normal_pairs()[words].view(np.float32)[: self.num_features].astype(np.float64)
        scale = self.signal / float(np.sqrt(np.add.reduce(weights**2)))
        scaled: np.ndarray = (weights * scale).astype(np.float32)
        return scaled

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard in tables of at most 16 MB."""
        bits, weights = self._bits(shard), self.weights
        most = max(1, _TABLE_NUMBERS // self.num_features)
        step = max(1, _CHUNK_NUMBERS // self.num_features)
        products = np.empty((step, self.num_features), dtype=np.float32)
        for first in range(0, self.rows_per_shard, most):
            rows = min(most, self.rows_per_shard - first)
            pairs = np.empty((rows, self._pairs), dtype=np.complex64)
            features = pairs.view(np.float32)[:, : self.num_features]
            labels = np.empty(rows, dtype=np.int64)
            for start in range(0, rows, step):
                chunk = slice(start, start + step)
                thresholds = _fill(pairs[chunk], bits)
                out = products[: len(thresholds)]
                # not by BLAS, since its order of additions varies
                logits = np.add.reduce(np.multiply(features[chunk], weights, out=out), axis=1)
                # P(logistic variable < logit) is P(label = 1)
                labels[chunk] = thresholds < logits
            ids = np.arange(rows, dtype=np.int64) + (shard * self.rows_per_shard + first)
            yield Table(ids=ids, features=features, labels=labels)

    @property
    def reference(self) -> dict[str, Any]:
        """Accuracy of the true weights: the mean of max(p, 1 - p) over the distribution of the logit."""
        logits = self.signal * _normal_quantiles().astype(np.float64)
        value = float(np.mean(1 / (1 + np.exp(-np.abs(logits)))))
        return {
            "metric": "accuracy",
            "value": round(value, 4),
            "meaning": "accuracy of the model that drew the labels",
        }

    @property
    def _pairs(self) -> int:
        return (self.num_features + 1) // 2

    def _bits(self, shard: int) -> np.random.Philox:
        return np.random.Philox(key=np.array([self.seed, shard % 2**64], dtype=np.uint64))


def _fill(pairs: np.ndarray, bits: np.random.Philox) -> np.ndarray:
    """Draw the features of rows [N, pairs] in place, and return one logistic variable per row [N]."""
    words = _draw(bits, pairs.size + len(pairs))
    # any mode but "raise" lets take() write into `out` directly; no word is out of range
    _normal_pairs().take(words[: pairs.size].reshape(pairs.shape), out=pairs, mode="wrap")
    thresholds: np.ndarray = _logistic_quantiles()[words[pairs.size :]]
    return thresholds


def _draw(bits: np.random.Philox, count: int) -> np.ndarray:
    """Return `count` words of 16 bits, lowest bits of each 64-bit number first."""
    raw = bits.random_raw(-(-count // 4))
    words: np.ndarray = raw.astype("<u8", copy=False).view("<u2")
    return words[:count]


@cache
def _normal_pairs() -> np.ndarray:
    """Return [65,536] pairs of float32, each as one complex64: normal quantiles of Hammersley points."""
    words = np.arange(_WORDS)
    places = range(_WORD_BITS)
    reversed_words = sum((words >> place & 1) << (_WORD_BITS - 1 - place) for place in places)
    quantiles = _normal_quantiles()
    return np.stack([quantiles, quantiles[reversed_words]], axis=1).view(np.complex64)[:, 0]


@cache
def _normal_quantiles() -> np.ndarray:
    return _quantiles(NormalDist().inv_cdf)


@cache
def _logistic_quantiles() -> np.ndarray:
    return _quantiles(lambda chance: log(chance / (1 - chance)))


def _quantiles(inverse: Callable[[float], float]) -> np.ndarray:
    chances = ((word + 0.5) / _WORDS for word in range(_WORDS))
    return np.fromiter(map(inverse, chances), dtype=np.float32, count=_WORDS)
