"""Packing of rows into packs of one length by best fit, longest rows first; needs only NumPy.

Each row goes into the fullest pack that has space for it. Rows are packed in groups, so that the
packs of a window only need rows that are near each other in the shard.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardline_io.errors import DataError

PLAN_VERSION = 1  # raise it with any change that gives other packs
GROUP_ROWS, GROUP_VALUES, GROUP_PACKS = 1 << 16, 1 << 24, 256
_MOST = 2**32 - 1  # rows and parts are stored as uint32


@dataclass(frozen=True)
class Packs:
    """Assignment of segments of rows to packs.

    A row that is longer than a pack is cut into parts: part p begins at value p * length and has at
    most `length` values.

    Attributes:
        firsts: pack p has segments [firsts[p], firsts[p + 1]); [P + 1] int64.
        rows: row of each segment [M] uint32.
        parts: number of each segment's part in its row [M] uint32.
        used: number of values in each pack [P] uint32.
    """

    firsts: np.ndarray
    rows: np.ndarray
    parts: np.ndarray
    used: np.ndarray


def plan_packs(lengths: np.ndarray, length: int) -> Packs:
    """Pack a shard's rows; the result only depends on the arguments and `PLAN_VERSION`.

    Args:
        lengths: number of values in each row [N] int64; empty rows are in no pack.
        length: maximum number of values in a pack.

    Raises:
        DataError: there are 2^32 rows or more, or a row has as many parts.
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

    A group has `GROUP_ROWS` rows or `GROUP_VALUES` values, whichever is less, but at least enough
    for `GROUP_PACKS` packs, since the last pack of a group is hardly filled.
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
            f"a shard has {last:,} rows and a row that fills {num_parts.max():,} packs, expected at most {_MOST:,} of "
            "each; split the dataset into more shards, or raise data.pack.length"
        )
    rows = np.repeat(np.arange(first, last), num_parts)
    parts = np.arange(len(rows)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    sizes = np.minimum(lengths[rows] - parts * length, length)
    falling = np.argsort(-sizes, kind="stable")
    pack = np.empty(len(rows), np.int64)
    pack[falling] = _packs_of(sizes[falling], length)
    # sort packs by their first segment, and segments within a pack by row
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
    """Return the pack of each size, for sizes [M] in descending order.

    Equal sizes are placed together: the fullest pack with space for one gets as many as fit, since
    it remains the fullest.
    """
    sizes, counts = np.unique(falling, return_counts=True)
    found: list[int] = []
    spaces: list[int] = []  # distinct amounts of free space, ascending
    packs: dict[int, list[int]] = {}  # by free space
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
            if len(filled) < num:  # the last pack gets the remaining segments of this size
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
