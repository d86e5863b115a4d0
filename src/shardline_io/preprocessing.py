"""Preprocessing of stored rows: features and categories, computed with NumPy from what a dataset's seal fitted.

A dataset with `source.preprocess` stores the numbers of its tables, the gaps in them and a code for each
category. The manifest's `preprocessing` has the fitted values, see `shardline.records.preprocessing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NUMBERS, GAPS, CODES = "numbers", "gaps", "codes"
_TILED = 8192  # numbers in a tile: long enough for NumPy's inner loop, and within the cache
_MOST_TABLED = 4096  # more categories are found by bisection
_MOST_BITS = 16  # of a table's index: 512 KiB, of which only rows of categories are touched
_UNKNOWN = -(1 << 62)
_CURVED = ("log", "quantile")
_CACHED_BYTES = 1 << 20  # of numbers that are computed at once


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
        one_hot, indexed = [], []
        for place, one in enumerate(categories):
            if one["encode"] == "onehot":
                one_hot.append((place, one, width))
                width += len(one["codes"])
            else:
                indexed.append((place, one, 1))
        self._one_hot = _Lookup(one_hot, is_own=is_own) if one_hot else None
        self._indexed = _Lookup(indexed, is_own=is_own) if indexed else None
        self.num_features, self.num_indexed = width, len(indexed)
        self._starts = np.zeros(0, np.int64)  # of rows in memory for features

    def __call__(
        self, stored: Mapping[str, np.ndarray], out: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns of rows that a model gets.

        Args:
            stored: stored columns by name, each [N, *shape].
            out: contiguous memory [N, F] float32 for the features; may be the stored numbers.

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
        if self._one_hot:
            if len(self._starts) < rows:
                self._starts = np.arange(0, rows * self.num_features, self.num_features)
            places, is_unknown = self._one_hot(stored[CODES])
            places += self._starts[:rows]
            known = places.reshape(-1) if is_unknown is None else places[~is_unknown]
            features.reshape(-1)[known] = 1
        made = {"features": features}
        if self._indexed:
            places, is_unknown = self._indexed(stored[CODES])
            if is_unknown is not None:
                places[is_unknown] = 0
            made["categories"] = np.ascontiguousarray(places.T)
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
        # columns with more steps than a sum and a division
        self._own = [
            (place, one)
            for place, one in enumerate(fitted)
            if [*one["clip"]] != [None, None] or one["scale"] in _CURVED
        ]
        self._fitted, self._bytes = fitted, -(-self.count // 8)  # a byte of gaps: eight numbers
        self._lines: dict[tuple[str, int], np.ndarray] = {}
        self._tables: dict[int, np.ndarray] = {}

    def __call__(self, numbers: np.ndarray, gaps: np.ndarray, out: np.ndarray) -> None:
        """Write features of numbers [N, n] and of gaps [N, ...] uint8, a bit for each number."""
        step = max(1, _CACHED_BYTES // (self.count * numbers.dtype.itemsize))
        is_direct = out.shape[1] == self.count and out.dtype == numbers.dtype
        room = None if is_direct else np.empty((min(step, len(numbers)), self.count), numbers.dtype)
        for first in range(0, len(numbers), step):
            rows = slice(first, first + step)
            given, missing, features = numbers[rows], gaps[rows], out[rows, : self.count]
            work = features if room is None else room[: len(given)]
            if self._own:
                given = self._by_column(given, missing, work)
            for column, place in enumerate(self._flagged, self.count):
                out[rows, column] = _bit(missing, place)
            if missing.any():
                np.add(given, self._fills(missing, work.dtype), out=work)
            else:
                self._by_tile(np.subtract, given, "shift", work)
            self._by_tile(np.divide, work, "divisor", work)
            if room is not None:
                features[:] = work

    def _by_column(self, numbers: np.ndarray, gaps: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Return numbers in `work`, those of some columns within their limits and curved."""
        if not np.may_share_memory(work, numbers):
            work[:] = numbers
        for place, one in self._own:
            column, is_gap = work[:, place], _bit(gaps, place)
            if [*one["clip"]] != [None, None]:
                np.clip(column, *one["clip"], out=column)
                column *= 1 - is_gap  # a zero stands for a gap
            if one["scale"] not in _CURVED:
                continue
            np.copyto(column, one["fill"], where=is_gap.view(bool))
            if one["scale"] == "log":
                column[:] = np.copysign(np.log1p(np.abs(column)), column)
            else:
                column[:] = _ranks(column, np.array(one["quantiles"], np.float64))
        return work

    def _fills(self, gaps: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Return what is added to numbers [N, n]: fill minus shift for a gap, minus shift otherwise.

        A lookup instead of a mask, by which processors guess wrong.
        """
        if dtype.itemsize not in self._tables:
            self._tables[dtype.itemsize] = self._table(dtype)
        index = gaps[:, : self._bytes].astype(np.intp)
        index += np.arange(0, 256 * self._bytes, 256)
        found = self._tables[dtype.itemsize].take(index, axis=0)
        filled: np.ndarray = found.reshape(len(gaps), -1)[:, : self.count]
        return filled

    def _table(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the sums [256 * bytes, 8] for each value of each byte of gaps."""
        fill, shift = np.zeros((2, self._bytes * 8), dtype)
        shift[: self.count] = _line(self._fitted, "shift")
        fill[: self.count] = _line(self._fitted, "fill")
        fill[[place for place, one in self._own if one["scale"] in _CURVED]] = 0  # filled already
        is_gap = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        by_byte = (fill - shift).reshape(-1, 1, 8), -shift.reshape(-1, 1, 8)
        table: np.ndarray = np.where(is_gap, *by_byte).reshape(-1, 8)
        return table

    def _by_tile(self, operation: np.ufunc, values: np.ndarray, name: str, out: np.ndarray) -> None:
        """Apply an operation to contiguous rows and a line of numbers; NumPy is slow on short rows."""
        key = name, values.dtype.itemsize
        if key not in self._lines:
            line = _line(self._fitted, name).astype(values.dtype)
            self._lines[key] = np.tile(line, max(1, _TILED // self.count))
        tile, flat, made = self._lines[key], values.reshape(-1), out.reshape(-1)
        whole = len(flat) // len(tile) * len(tile)
        many = flat[:whole].reshape(-1, len(tile)), made[:whole].reshape(-1, len(tile))
        operation(many[0], tile, out=many[1])
        operation(flat[whole:], tile[: len(flat) - whole], out=made[whole:])


def _bit(gaps: np.ndarray, place: int) -> np.ndarray:
    """Return which rows lack a number [N] uint8, 1 for a gap."""
    found: np.ndarray = gaps[:, place // 8] >> np.uint8(place % 8) & np.uint8(1)
    return found


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
    found: np.ndarray = 0.5 * (upwards - downwards)
    found[values == quantiles[-1]] = 1
    found[values == quantiles[0]] = 0
    return found


class _Lookup:
    """Places of the categories of some columns by code.

    Args:
        categories: index of each column in the codes, its fitted preprocessing, and the place of its
            first category; the others follow.
        is_own: whether no code is unknown.
    """

    def __init__(
        self, categories: Sequence[tuple[int, Mapping[str, Any], int]], *, is_own: bool
    ) -> None:
        self._columns = [column for column, _, _ in categories]
        keys = [np.array(one["codes"], np.int64) for _, one, _ in categories]
        places = [np.arange(first, first + len(one["codes"])) for _, one, first in categories]
        for of, (_, one, _) in zip(places, categories):
            of[np.array(one["train_rows"], np.int64) == 0] = _UNKNOWN
        self._is_certain = is_own and all((of != _UNKNOWN).all() for of in places)
        bits, self._shifts = _spread(keys)
        self._mask = (1 << bits) - 1
        sizes = [1 << bits if bits else max(1, len(of)) for of in keys]
        self._bases = np.cumsum([0, *sizes])[:-1, None]
        self._keys = np.zeros(sum(sizes), np.int64)
        self._places = np.full(sum(sizes), _UNKNOWN, np.int64)
        self._sorted: list[np.ndarray] = [np.sort(of) for of in keys]
        for number, of in enumerate(keys):
            slots = self._slots(of[None], slice(number, number + 1))[0]
            self._keys[slots], self._places[slots] = of, places[number]

    def __call__(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the places of codes [N, ...] by column [C, N], and a mask of unknown codes, if there are any."""
        own = np.ascontiguousarray(codes.T[self._columns])
        slots = self._slots(own, slice(None))
        places: np.ndarray = self._places.take(slots)
        if self._is_certain:
            return places, None
        is_unknown = (self._keys.take(slots) != own) | (places < 0)
        return places, is_unknown if is_unknown.any() else None

    def _slots(self, codes: np.ndarray, columns: slice) -> np.ndarray:
        """Return where keys and places of codes [C, N] are."""
        if self._mask:
            slots: np.ndarray = codes >> self._shifts[columns]
            slots &= self._mask
        else:
            slots = np.stack(
                [
                    np.minimum(np.searchsorted(of, row), max(0, len(of) - 1))
                    for of, row in zip(self._sorted[columns], codes)
                ]
            )
        slots += self._bases[columns]
        return slots


def _spread(keys: Sequence[np.ndarray]) -> tuple[int, np.ndarray]:
    """Return a number of bits, and for each column where in its codes so many bits differ for all categories.

    One access then finds a category. 0 bits if there are too many categories.
    """
    most = max(map(len, keys))
    for bits in range(most.bit_length() + 1, _MOST_BITS + 1 if most <= _MOST_TABLED else 0):
        shifts = [_shift(of, bits) for of in keys]
        if None not in shifts:
            return bits, np.array(shifts)[:, None]
    return 0, np.zeros((len(keys), 1), np.int64)


def _shift(keys: np.ndarray, bits: int) -> int | None:
    for shift in range(64 - bits):
        if len(np.unique(keys >> shift & ((1 << bits) - 1))) == len(keys):
            return shift
    return None
