"""Rows of different lengths put together to packs of one length: best fit, the longest first.

Each row goes into the fullest pack that has space for it, in the order of falling lengths. Rows are
packed in groups, so that the packs of a window need no rows from all over a shard. NumPy alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardline_io.errors import DataError

PLAN_VERSION = 1  # another one for any change that gives other packs
GROUP_ROWS, GROUP_VALUES, GROUP_PACKS = 1 << 16, 1 << 24, 256
_MOST = 2**32 - 1  # rows and parts are kept as uint32


@dataclass(frozen=True)
class Packs:
    """Which segments of rows lie in which pack.

    A row that is longer than a pack is cut: its part p has the values from p * length on, at most
    `length` of them.

    Attributes:
        firsts: pack p has segments [firsts[p], firsts[p + 1]); [P + 1] int64.
        rows: row of each segment [M] uint32.
        parts: part of its row that each segment is [M] uint32.
        used: values in each pack [P] uint32.
    """

    firsts: np.ndarray
    rows: np.ndarray
    parts: np.ndarray
    used: np.ndarray


def plan_packs(lengths: np.ndarray, length: int) -> Packs:
    """Return the packs of a shard's rows, a function of the arguments and of `PLAN_VERSION`.

    Args:
        lengths: values of each row [N] int64; an empty row is in no pack.
        length: values of a pack, at most.

    Raises:
        DataError: there are more rows, or more parts of one, than 2^32.
    """
    groups = [_best_fit(lengths, *group, length) for group in _groups(lengths, length)]
    sizes = [0, *(len(group.rows) for group in groups)]
    starts = np.cumsum(sizes)[:-1]
    firsts = [group.firsts[:-1] + start for group, start in zip(groups, starts)]
    return Packs(
        firsts=np.concatenate([*firsts, [sum(sizes)]]).astype(np.int64),
        rows=_joined([group.rows for group in groups]),
        parts=_joined([group.parts for group in groups]),
        used=_joined([group.used for group in groups]),
    )


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.uint32), *arrays])


def _groups(lengths: np.ndarray, length: int) -> Iterator[tuple[int, int]]:
    """Yield the rows [first, last) of each group.

    A group has `GROUP_ROWS` rows or `GROUP_VALUES` values, whichever is less, but enough for
    `GROUP_PACKS` packs, of which the last is hardly filled.
    """
    ends = np.cumsum(lengths)
    least = GROUP_PACKS * length
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        most, enough = np.searchsorted(ends, [before + max(GROUP_VALUES, least), before + least])
        last = min(int(most) + 1, max(int(enough) + 1, first + GROUP_ROWS), len(lengths))
        yield first, last
        first = last


def _best_fit(lengths: np.ndarray, first: int, last: int, length: int) -> Packs:
    """Return the packs of rows [first, last)."""
    num_parts = -(-lengths[first:last] // length)
    if last > _MOST or num_parts.max() > _MOST:
        raise DataError(
            f"a shard has {last:,} rows, or a row of {num_parts.max():,} packs, expected at most {_MOST:,}; cut the "
            "dataset into more shards, or pack to a larger length"
        )
    rows = np.repeat(np.arange(first, last), num_parts)
    parts = np.arange(len(rows)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    sizes = np.minimum(lengths[rows] - parts * length, length)
    falling = np.argsort(-sizes, kind="stable")
    pack = np.empty(len(rows), np.int64)
    pack[falling] = _packs_of(sizes[falling], length)
    # packs by their first segment, and the segments of each in the order of the rows
    _, begins, pack = np.unique(pack, return_index=True, return_inverse=True)
    number = np.empty(len(begins), np.int64)
    number[np.argsort(begins)] = np.arange(len(begins))
    pack = number[pack]
    order = np.argsort(pack, kind="stable")
    used = np.bincount(pack, weights=sizes, minlength=len(begins))
    return Packs(
        firsts=np.concatenate([[0], np.cumsum(np.bincount(pack, minlength=len(begins)))]),
        rows=rows[order].astype(np.uint32),
        parts=parts[order].astype(np.uint32),
        used=used.astype(np.uint32),
    )


def _packs_of(falling: np.ndarray, length: int) -> list[int]:
    """Return the pack of each size, for sizes [M] that fall.

    Equal sizes go into equally full packs together: the fullest pack with space for one takes as
    many as fit, since it stays the fullest.
    """
    sizes, counts = np.unique(falling, return_counts=True)
    found: list[int] = []
    spaces: list[int] = []  # that packs have left, rising, each once
    packs: dict[int, list[int]] = {}  # by space left
    num_packs = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist()):
        while count:
            place = bisect_left(spaces, size)
            if place == len(spaces):
                opened = -(-count // (length // size))
                _add(spaces, packs, length, list(range(num_packs, num_packs + opened)))
                num_packs += opened
            space = spaces[place]
            each, fitting = space // size, packs[space]
            num = min(len(fitting), -(-count // each))
            taken = fitting[-num:]
            del fitting[-num:]
            if not fitting:
                del spaces[place], packs[space]
            filled = taken[: count // each]
            for pack in filled:
                found += [pack] * each
            _add(spaces, packs, space - each * size, filled)
            count -= len(filled) * each
            if len(filled) < num:  # the last takes what is left, of equal sizes
                found += taken[-1:] * count
                _add(spaces, packs, space - count * size, taken[-1:])
                count = 0
    return found


def _add(spaces: list[int], packs: dict[int, list[int]], space: int, added: list[int]) -> None:
    if not (space and added):
        return
    if space not in packs:
        insort(spaces, space)
    packs.setdefault(space, []).extend(added)
