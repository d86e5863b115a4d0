"""Rows drawn from a known logistic model, any number of them."""

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
    """Standard normal features; P(label = 1) is the logistic of a true weighting.

    A 16-bit word of Philox is looked up in a table of 65,536 pairs of normal
    quantiles: eight times as fast as drawing normals (2.1 GB/s for 0.25,
    measured), and the same on every machine, since nothing but additions and
    multiplications in a fixed order is left to compute. A feature therefore
    takes 65,536 values up to +-4.3, and two neighbours are a point of a
    Hammersley set in the plane, which no logistic model can tell from
    independent normal ones (their correlation is 0.001). Philox is
    counter-based and keyed by (seed, shard), so shard k is the same whichever
    job writes it (Salmon et al., SC 2011).

    Args:
        num_shards: shards that the dataset is cut into.
        rows_per_shard: rows in each shard.
        features: float32 features of a row.
        seed: seed of features and weights.
        signal: length of the weight vector; the logit's standard deviation.
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
        """A flat row of floats, two classes."""
        return Schema(feature_shape=(self.num_features,), classes=("0", "1"))

    @property
    def weights(self) -> np.ndarray:
        """The true weights [features] float32, of length `signal`."""
        # keys are unsigned: -1 becomes the largest, which no shard has
        words = _draw(self._bits(shard=-1), self._pairs)
        weights = _normal_pairs()[words].view(np.float32)[: self.num_features].astype(np.float64)
        scale = self.signal / float(np.sqrt(np.add.reduce(weights**2)))
        scaled: np.ndarray = (weights * scale).astype(np.float32)
        return scaled

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows in tables of at most 16 MB."""
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
                # no BLAS: its order of summing varies
                logits = np.add.reduce(np.multiply(features[chunk], weights, out=out), axis=1)
                # a logistic variable lies below the logit with just the chance that the label is 1
                labels[chunk] = thresholds < logits
            ids = np.arange(rows, dtype=np.int64) + (shard * self.rows_per_shard + first)
            yield Table(ids=ids, features=features, labels=labels)

    @property
    def reference(self) -> dict[str, Any]:
        """Accuracy of the true weights: the mean of max(p, 1 - p) over the logit's distribution."""
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
    """Draw the features of rows [N, pairs] in place, and a logistic variable for each row [N]."""
    words = _draw(bits, pairs.size + len(pairs))
    # any mode but "raise" lets take() write into `out` directly; no word is out of range
    _normal_pairs().take(words[: pairs.size].reshape(pairs.shape), out=pairs, mode="wrap")
    thresholds: np.ndarray = _logistic_quantiles()[words[pairs.size :]]
    return thresholds


def _draw(bits: np.random.Philox, count: int) -> np.ndarray:
    """Return `count` words of 16 bits, the low ones of each 64 first."""
    raw = bits.random_raw(-(-count // 4))
    words: np.ndarray = raw.astype("<u8", copy=False).view("<u2")
    return words[:count]


@cache
def _normal_pairs() -> np.ndarray:
    """Return [65,536] pairs of float32, each as one complex64: the plane's Hammersley points."""
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
