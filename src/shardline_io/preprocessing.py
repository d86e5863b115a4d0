"""Preprocessing of stored rows: features and categories, computed with NumPy from what a dataset's seal fitted.

A dataset with `source.preprocess` stores the numbers of its tables, the gaps in them and a code for each
category. The manifest's `preprocessing` has the fitted values, see `shardline.records.preprocessing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NUMBERS, GAPS, CODES = "numbers", "gaps", "codes"
_TILED = 4096  # numbers in a tile: long enough for NumPy's inner loop, and within the cache
_MOST_TABLED = 4096  # more categories are found by bisection
_MOST_BITS = 16  # of a table's index: 512 KiB, of which only rows of categories are touched
_UNKNOWN = -(1 << 62)
_CACHED_BYTES = 1 << 17  # of numbers that are computed at once
_BITS = {
    kind.itemsize: np.unpackbits(
        np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
    ).astype(kind)
    for kind in (np.dtype(np.float32), np.dtype(np.float64))
}


class Preprocessor:
    """Makes features and categories from stored columns.

    Every step works on whole blocks of rows, and a row's result depends on this row alone.

    Args:
        fitted: the manifest's `preprocessing`.
        is_own: whether all rows belong to the dataset, so that no code is unknown.

    Attributes:
        num_features: number F of features.
        num_indexed: number C of columns of categories.
    """

    def __init__(self, fitted: Mapping[str, Any], *, is_own: bool = False) -> None:
        numbers, categories = fitted["numbers"], fitted["categories"]
        self._numbers = _Numbers(numbers) if numbers else None
        width = self._numbers.width if self._numbers else 0
        self._one_hot: list[tuple[int, _Lookup]] = []
        self._indexed: list[tuple[int, _Lookup]] = []
        for place, one in enumerate(categories):
            if one["encode"] == "onehot":
                self._one_hot.append((place, _Lookup(one, first=width, is_own=is_own)))
                width += len(one["codes"])
            else:
                self._indexed.append((place, _Lookup(one, first=1, is_own=is_own)))
        self.num_features, self.num_indexed = width, len(self._indexed)
        self._starts = np.zeros(0, np.int64)  # of rows in memory for features

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
            self._numbers(stored[NUMBERS], stored[GAPS], features)
            features[:, self._numbers.width :] = 0
        else:
            features[:] = 0
        if len(self._starts) < rows:
            self._starts = np.arange(0, rows * self.num_features, max(1, self.num_features))
        for place, lookup in self._one_hot:
            column, is_unknown = lookup(stored[CODES][:, place])
            column += self._starts[:rows]
            if is_unknown is not None:
                column = column[~is_unknown]
            features.reshape(-1)[column] = 1
        made = {"features": features}
        if self._indexed:
            made["categories"] = np.empty((rows, self.num_indexed), np.int64)
        for column, (place, lookup) in enumerate(self._indexed):
            index, is_unknown = lookup(stored[CODES][:, place])
            if is_unknown is not None:
                index[is_unknown] = 0
            made["categories"][:, column] = index
        kept = {name: of for name, of in stored.items() if name not in (NUMBERS, GAPS, CODES)}
        return {**made, **kept}


class _Numbers:
    """Numbers [N, n] as features: clipped, filled and scaled.

    Attributes:
        count: number n of numbers, the first features.
        width: number of features, with the flags of gaps.
    """

    def __init__(self, fitted: Sequence[Mapping[str, Any]]) -> None:
        self.count = len(fitted)
        self._flagged = [place for place, one in enumerate(fitted) if one["impute"] == "flag"]
        self.width = self.count + len(self._flagged)
        limits = [(place, *one["clip"]) for place, one in enumerate(fitted)]
        self._clips = [one for one in limits if one[1:] != (None, None)]
        curved = ("log", "quantile")
        self._curved = [(n, one) for n, one in enumerate(fitted) if one["scale"] in curved]
        self._lines = {key: _line(fitted, key) for key in ("shift", "divisor")}
        # a byte of gaps stands for eight numbers
        self._bytes = -(-self.count // 8)
        self._lines["fill"] = np.zeros(8 * self._bytes)
        self._lines["fill"][: self.count] = _line(fitted, "fill")
        self._tiles: dict[Any, np.ndarray] = {}

    def __call__(self, numbers: np.ndarray, gaps: np.ndarray, out: np.ndarray) -> None:
        """Write features of numbers [N, n] and of gaps [N, ...] uint8, a bit for each number."""
        step = max(1, _CACHED_BYTES // (self.count * numbers.dtype.itemsize))
        is_direct = out.shape[1] == self.count and out.dtype == numbers.dtype
        room = None if is_direct else np.empty((min(step, len(numbers)), self.count), numbers.dtype)
        for first in range(0, len(numbers), step):
            rows = slice(first, first + step)
            given, features = numbers[rows], out[rows, : self.count]
            work = features if room is None else room[: len(given)]
            filled = self._filled(given, gaps[rows], work, out[rows, self.count : self.width])
            self._scale(filled, work)
            if room is not None:
                features[:] = work

    def _filled(
        self, numbers: np.ndarray, gaps: np.ndarray, work: np.ndarray, flags: np.ndarray
    ) -> np.ndarray:
        """Return numbers [N, n] within their limits and with filled gaps: the same array, or `work`."""
        has_gaps = bool(gaps.any())
        if self._clips or self._curved or has_gaps:
            work[:] = numbers
            numbers = work
        for place, low, high in self._clips:
            np.clip(work[:, place], low, high, out=work[:, place])
        if not has_gaps:
            flags[:] = 0
            return numbers
        # sums and products instead of a mask, by which processors guess wrong
        bits = _BITS[work.dtype.itemsize].take(gaps[:, : self._bytes], axis=0)
        bits = bits.reshape(len(gaps), -1)
        flags[:] = bits[:, self._flagged]
        if self._clips:  # also zeros, which stand for gaps
            work *= 1 - bits[:, : self.count]
        self._by_tile(np.multiply, bits, "fill", bits)
        work += bits[:, : self.count]
        return work

    def _scale(self, numbers: np.ndarray, work: np.ndarray) -> None:
        """Write scaled numbers [N, n] into `work`, which may be the same array."""
        for place, one in self._curved:
            if one["scale"] == "log":
                column = numbers[:, place]
                numbers[:, place] = np.copysign(np.log1p(np.abs(column)), column)
            else:
                quantiles = np.array(one["quantiles"], np.float64)
                numbers[:, place] = _ranks(numbers[:, place], quantiles)
        self._by_tile(np.subtract, numbers, "shift", work)
        self._by_tile(np.divide, work, "divisor", work)

    def _by_tile(self, operation: np.ufunc, values: np.ndarray, name: str, out: np.ndarray) -> None:
        """Apply an operation to contiguous rows and a line of numbers; NumPy is slow on short rows."""
        if (name, values.dtype) not in self._tiles:
            line = self._lines[name].astype(values.dtype)
            self._tiles[name, values.dtype] = np.tile(line, max(1, _TILED // len(line)))
        tile, flat, made = self._tiles[name, values.dtype], values.reshape(-1), out.reshape(-1)
        whole = len(flat) // len(tile) * len(tile)
        many = flat[:whole].reshape(-1, len(tile)), made[:whole].reshape(-1, len(tile))
        operation(many[0], tile, out=many[1])
        operation(flat[whole:], tile[: len(flat) - whole], out=made[whole:])


def _line(fitted: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    return np.array([one[key] for one in fitted], np.float64)


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
    """Places of a column's categories by code.

    Args:
        fitted: the category's fitted preprocessing.
        first: place of the first category; the others follow.
        is_own: whether no code is unknown.
    """

    def __init__(self, fitted: Mapping[str, Any], *, first: int, is_own: bool) -> None:
        keys = np.array(fitted["codes"], np.int64)
        place = np.arange(first, first + len(keys))
        # a category without train rows is unknown
        place[np.array(fitted["train_rows"], np.int64) == 0] = _UNKNOWN
        self._mask, self._is_seen, self._is_own = 0, bool((place != _UNKNOWN).all()), is_own
        if len(keys) and len(keys) <= _MOST_TABLED:
            self._spread(keys, place)
        if not self._mask:
            order = np.argsort(keys)
            self._keys, self._place = keys[order], place[order]

    def _spread(self, keys: np.ndarray, place: np.ndarray) -> None:
        """Find some bits of the codes that differ for all categories: one access finds a category."""
        for bits in range(len(keys).bit_length() + 1, _MOST_BITS + 1):
            mask = (1 << bits) - 1
            for shift in range(64 - bits):
                slots = keys >> shift & mask
                if len(np.unique(slots)) == len(keys):
                    self._shift, self._mask = shift, mask
                    self._keys = np.full(mask + 1, keys[0], np.int64)
                    self._place = np.full(mask + 1, _UNKNOWN, np.int64)
                    self._keys[slots], self._place[slots] = keys, place
                    return

    def __call__(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the places of codes [N] int64, and a mask [N] of unknown codes; None if there are none."""
        if not len(self._keys):
            return np.zeros(len(codes), np.int64), np.ones(len(codes), bool)
        if self._mask:
            slots = codes >> self._shift
            slots &= self._mask
        else:
            slots = np.searchsorted(self._keys, codes)
            np.minimum(slots, len(self._keys) - 1, out=slots)
        place: np.ndarray = self._place.take(slots)
        if self._is_seen and self._is_own:
            return place, None
        is_known = self._keys.take(slots) == codes
        if self._is_seen and is_known.all():  # the common case needs no mask
            return place, None
        return place, ~is_known | (place < 0)
