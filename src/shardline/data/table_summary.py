"""Summaries of stored tables, from which preprocessing is fitted; merged over blocks, shards and jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    Preprocessing,
    RecordedCategories,
    RecordedNumbers,
    RecordedTable,
)

_BLOCK_ROWS = 4096
Texts = Mapping[str, Mapping[int, str]]  # text of each code, by column


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberMoments:
    """Moments of numbers [n], each over the rows with a value.

    Attributes:
        count: Number of rows with a value [n] int64.
        mean: [n] float64; 0 without values.
        m2: Sum of squared deviations from the mean [n] float64.
        low: Minimum [n] float64; inf without values.
        high: Maximum [n] float64; -inf without values.
    """

    count: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, is_there: np.ndarray) -> "NumberMoments":
        """Compute the moments of values [N, n] float64 with a mask of the rows that have one."""
        count = is_there.sum(axis=0, dtype=np.int64)
        low = np.where(is_there, values, np.inf).min(axis=0, initial=np.inf)
        high = np.where(is_there, values, -np.inf).max(axis=0, initial=-np.inf)
        total = np.where(is_there, values, 0.0).sum(axis=0)
        # a constant's mean is exact, so that its deviation is 0
        mean = np.where(low < high, total / np.maximum(count, 1), np.where(count > 0, low, 0.0))
        with np.errstate(over="ignore"):
            m2 = (np.where(is_there, values - mean, 0.0) ** 2).sum(axis=0)
        return cls(count=count, mean=mean, m2=m2, low=low, high=high)

    def merge(self, other: "NumberMoments") -> "NumberMoments":
        """Return the moments of these rows together with other rows (Chan, Golub and LeVeque, 1983)."""
        count = self.count + other.count
        share, delta = other.count / np.maximum(count, 1), other.mean - self.mean
        with np.errstate(over="ignore"):
            m2 = self.m2 + other.m2 + delta**2 * (self.count * share)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        mean = np.where(low < high, self.mean + delta * share, np.where(count > 0, low, 0.0))
        return NumberMoments(count=count, mean=mean, m2=m2, low=low, high=high)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSummary:
    """Summary of stored rows.

    Attributes:
        rows: Number of rows.
        numbers: Moments of the numbers, after `clip`.
        categories: Text and number of rows of each code, by column of categories.
    """

    rows: int
    numbers: NumberMoments
    categories: tuple[Mapping[int, tuple[str, int]], ...]

    @classmethod
    def of(
        cls, plan: Preprocessing, stored: Mapping[str, np.ndarray], texts: Texts
    ) -> "TableSummary":
        """Summarise stored columns of N rows.

        Args:
            plan: Preprocessing of the columns.
            stored: `numbers`, `gaps` and `codes`, as far as the plan has any.
            texts: Text of each code in the rows.
        """
        rows = len(next(iter(stored.values())))
        counted = []
        for place, one in enumerate(plan.categories):
            codes, counts = np.unique(stored[CODES][:, place], return_counts=True)
            names = texts.get(one.column, {})
            pairs = zip(codes.tolist(), counts.tolist(), strict=True)
            counted.append({code: (names.get(code, f"#{code}"), count) for code, count in pairs})
        return cls(rows=rows, numbers=_moments(plan, stored, rows), categories=tuple(counted))

    def merge(self, other: "TableSummary") -> "TableSummary":
        """Return the summary of these rows together with other rows."""
        pairs = zip(self.categories, other.categories, strict=True)
        return TableSummary(
            rows=self.rows + other.rows,
            numbers=self.numbers.merge(other.numbers),
            categories=tuple(_joined(*pair) for pair in pairs),
        )

    def to_record(self) -> RecordedTable:
        """Return the record of the summary, without loss."""
        arrays = {name: of.tolist() for name, of in vars(self.numbers).items()}
        for name in ("low", "high"):
            arrays[name] = [one if np.isfinite(one) else None for one in arrays[name]]
        return RecordedTable(
            rows=self.rows,
            numbers=RecordedNumbers(**arrays),
            categories=[
                RecordedCategories(
                    codes=sorted(of),
                    values=[of[code][0] for code in sorted(of)],
                    rows=[of[code][1] for code in sorted(of)],
                )
                for of in self.categories
            ],
        )

    @classmethod
    def of_record(cls, record: RecordedTable) -> "TableSummary":
        """Read the record of a summary."""
        found = record.numbers
        limits = {"low": np.inf, "high": -np.inf}
        arrays: dict[str, Any] = {
            name: np.array([limit if one is None else one for one in getattr(found, name)], float)
            for name, limit in limits.items()
        }
        arrays |= {name: np.array(getattr(found, name), float) for name in ("mean", "m2")}
        return cls(
            rows=record.rows,
            numbers=NumberMoments(count=np.array(found.count, np.int64), **arrays),
            categories=tuple(
                dict(zip(of.codes, zip(of.values, of.rows, strict=True), strict=True))
                for of in record.categories
            ),
        )


def merge_tables(tables: Sequence[TableSummary]) -> TableSummary:
    """Merge the summaries of any blocks of rows, in order."""
    return reduce(TableSummary.merge, tables)


def clipped(plan: Preprocessing, numbers: np.ndarray) -> np.ndarray:
    """Return numbers [N, n] as float64, within the limits of `clip`."""
    values = numbers.astype(np.float64)
    for place, one in enumerate(plan.numbers):
        if one.clip != (None, None):
            np.clip(values[:, place], *one.clip, out=values[:, place])
    return values


def gaps_of(gaps: np.ndarray, count: int) -> np.ndarray:
    """Return the mask of gaps [N, count] bool from its stored bits."""
    return np.unpackbits(gaps, axis=1, count=count, bitorder="little").view(bool)


def _moments(plan: Preprocessing, stored: Mapping[str, np.ndarray], rows: int) -> NumberMoments:
    count = len(plan.numbers)
    found = NumberMoments.of(np.zeros((0, count)), np.zeros((0, count), bool))
    for first in range(0, rows, _BLOCK_ROWS) if count else ():
        block = slice(first, first + _BLOCK_ROWS)
        is_gap = gaps_of(stored[GAPS][block], count)
        of_block = NumberMoments.of(clipped(plan, stored[NUMBERS][block]), ~is_gap)
        found = found.merge(of_block)
    return found


def _joined(
    one: Mapping[int, tuple[str, int]], other: Mapping[int, tuple[str, int]]
) -> dict[int, tuple[str, int]]:
    found = dict(one)
    for code, (text, rows) in other.items():
        known, before = found.get(code, (text, 0))
        if known != text:  # 64 bits: this happens to no one
            raise DataError(
                f'the categories "{known}" and "{text}" have the same code {code}, expected two codes; rename one '
                "of them in the files"
            )
        found[code] = (text, before + rows)
    return found
