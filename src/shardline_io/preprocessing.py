"""Preprocessing of stored rows: features and categories, computed with NumPy from what a dataset's seal fitted.

A dataset with `source.preprocess` stores the numbers of its tables, the gaps in them and a code for each
category. The manifest's `preprocessing` has the fitted values, see `shardline.records.preprocessing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NUMBERS, GAPS, CODES = "numbers", "gaps", "codes"
_TILED = (
    4096  # numbers in a tile: long enough for NumPy's inner loop, and small enough for the cache
)
_MOST_TABLED = 4096  # more categories are found by bisection
_MOST_BITS = (
    16  # of a table's index: 512 KiB, of which only the rows of known categories are touched
)


class Preprocessor:
    """Makes features and categories from stored columns.

    Every step works on whole blocks of rows, and a row's result depends on this row alone.

    Args:
        fitted: the manifest's `preprocessing`.

    Attributes:
        num_features: number F of features.
        num_indexed: number C of columns of categories.
    """

    def __init__(self, fitted: Mapping[str, Any]) -> None:
        numbers, categories = fitted["numbers"], fitted["categories"]
        self._numbers = _Numbers(numbers) if numbers else None
        width = self._numbers.width if self._numbers else 0
        self._one_hot: list[tuple[int, _Lookup, int]] = []
        self._indexed: list[tuple[int, _Lookup]] = []
        for place, one in enumerate(categories):
            lookup = _Lookup(one["codes"], one["train_rows"])
            if one["encode"] == "onehot":
                self._one_hot.append((place, lookup, width))
                width += len(one["codes"])
            else:
                self._indexed.append((place, lookup))
        self.num_features, self.num_indexed = width, len(self._indexed)

    def __call__(
        self, stored: Mapping[str, np.ndarray], out: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns of rows that a model gets.

        Args:
            stored: stored columns by name, each [N, *shape].
            out: contiguous memory [N, F] float32 for the features.

        Returns:
            `features` [N, F] float32, `categories` [N, C] int64 if there are any, and all stored
            columns that are not preprocessed.
        """
        rows = len(next(iter(stored.values())))
        features = np.empty((rows, self.num_features), np.float32) if out is None else out
        if self._numbers:
            features[:, self._numbers.count :] = 0
            self._numbers(stored[NUMBERS], stored[GAPS], features)
        else:
            features[:] = 0
        for place, lookup, first in self._one_hot:
            index = lookup(stored[CODES][:, place])
            (known,) = index.nonzero()
            if len(known) < rows:
                features[known, index[known] + (first - 1)] = 1
            else:  # the common case needs no selection
                index += np.arange(first - 1, rows * self.num_features, self.num_features)
                features.reshape(-1)[index] = 1
        made = {"features": features}
        if self._indexed:
            made["categories"] = np.empty((rows, self.num_indexed), np.int64)
        for column, (place, lookup) in enumerate(self._indexed):
            made["categories"][:, column] = lookup(stored[CODES][:, place])
        kept = {name: of for name, of in stored.items() if name not in (NUMBERS, GAPS, CODES)}
        return {**made, **kept}


class _Numbers:
    """Numbers [N, n] as features: clipped, scaled, and with filled gaps.

    Attributes:
        count: number n of numbers, the first features.
        width: number of features, with the flags of gaps.
    """

    def __init__(self, fitted: Sequence[Mapping[str, Any]]) -> None:
        self._fitted, self.count = fitted, len(fitted)
        flagged = [place for place, one in enumerate(fitted) if one["impute"] == "flag"]
        self.width = self.count + len(flagged)
        self._flags = np.full(self.count, -1, np.int64)
        self._flags[flagged] = np.arange(self.count, self.width)
        shift, divisor = ([one[key] for one in fitted] for key in ("shift", "divisor"))
        self._lines = np.array([shift, divisor], np.float64)
        self._tiles: dict[Any, np.ndarray] = {}
        fill = np.array([[one["fill"] for one in fitted]], np.float64)
        self._filled = {
            kind: self._scaled(fill.astype(kind))[0].astype(np.float32)
            for kind in (np.float32, np.float64)
        }

    def __call__(self, numbers: np.ndarray, gaps: np.ndarray, out: np.ndarray) -> None:
        """Write features of numbers [N, n] and of gaps [N, ceil(n / 8)] uint8, a bit for each number."""
        work = np.array(numbers)  # a copy
        for place, one in enumerate(self._fitted):
            low, high = one["clip"]
            if low is not None or high is not None:
                np.clip(work[:, place], low, high, out=work[:, place])
        out[:, : self.count] = self._scaled(work)
        if gaps.any():
            width = 8 * gaps.shape[1]
            places = np.flatnonzero(np.unpackbits(gaps.reshape(-1), bitorder="little"))
            rows, columns = places // width, places % width
            out[rows, columns] = self._filled[work.dtype.type][columns]
            flagged = self._flags[columns]
            out[rows[flagged >= 0], flagged[flagged >= 0]] = 1

    def _scaled(self, work: np.ndarray) -> np.ndarray:
        """Scale numbers [N, n] in place."""
        for place, one in enumerate(self._fitted):
            if one["scale"] == "log":
                column = work[:, place]
                work[:, place] = np.copysign(np.log1p(np.abs(column)), column)
            elif one["scale"] == "quantile":
                work[:, place] = _ranks(work[:, place], np.array(one["quantiles"], np.float64))
        shift, divisor = self._tile(work.dtype)
        flat, size = work.reshape(-1), len(shift)
        whole = len(flat) // size * size
        for part, length in ((flat[:whole].reshape(-1, size), size), (flat[whole:], None)):
            rest = length or len(part)
            np.subtract(part, shift[:rest], out=part)
            np.divide(part, divisor[:rest], out=part)
        return work

    def _tile(self, kind: np.dtype[Any]) -> np.ndarray:
        """Return shifts and divisors of some rows [2, size], since NumPy is slow on short rows."""
        if kind not in self._tiles:
            rows = max(1, _TILED // self.count)
            self._tiles[kind] = np.tile(self._lines.astype(kind), (1, rows))
        return self._tiles[kind]


def _ranks(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Return the rank, from 0 to 1, of values [N] among quantiles, as scikit-learn's QuantileTransformer does.

    The mean of both directions puts a repeated value into the middle of its ranks.
    """
    values = values.astype(np.float64)
    ranks = np.linspace(0, 1, len(quantiles), endpoint=True)
    upwards = np.interp(values, quantiles, ranks)
    downwards = np.interp(-values, -quantiles[::-1], -ranks[::-1])
    found = 0.5 * (upwards - downwards)
    found[values == quantiles[-1]] = 1
    found[values == quantiles[0]] = 0
    return found


class _Lookup:
    """Indices of a column's categories by code.

    Args:
        codes: code of each category, in the order of the indices 1, 2, ...
        train_rows: train rows of each category; without one its index is 0.
    """

    def __init__(self, codes: Sequence[int], train_rows: Sequence[int]) -> None:
        keys = np.array(codes, np.int64)
        index = np.where(np.array(train_rows, np.int64) > 0, np.arange(1, len(keys) + 1), 0)
        self._mask = 0
        if len(keys) and len(keys) <= _MOST_TABLED:
            self._spread(keys, index)
        if not self._mask:
            order = np.argsort(keys)
            self._keys, self._index = keys[order], index[order]

    def _spread(self, keys: np.ndarray, index: np.ndarray) -> None:
        """Find some bits of the codes that differ for all categories: one access finds a category."""
        for bits in range(len(keys).bit_length() + 1, _MOST_BITS + 1):
            mask = (1 << bits) - 1
            for shift in range(64 - bits):
                slots = keys >> shift & mask
                if len(np.unique(slots)) == len(keys):
                    self._shift, self._mask = shift, mask
                    self._keys, self._index = np.zeros((2, mask + 1), np.int64)
                    self._keys[slots], self._index[slots] = keys, index
                    return

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        """Return the indices of codes [N] int64; 0 for unknown ones."""
        if not len(self._keys):
            return np.zeros(len(codes), np.int64)
        if self._mask:
            places = codes >> self._shift
            places &= self._mask
        else:
            places = np.searchsorted(self._keys, codes)
            np.minimum(places, len(self._keys) - 1, out=places)
        found: np.ndarray = self._index.take(places)
        found *= self._keys.take(places) == codes
        return found
