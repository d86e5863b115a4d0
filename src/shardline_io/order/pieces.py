"""Ranges of rows in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardline_io.order.folds import split_of


@dataclass(frozen=True)
class Piece:
    """Rows [first, last) of one shard."""

    shard: int
    first: int
    last: int


def split_pieces(
    shards: Iterable[Mapping[str, int]], split: str, fold: int | None = None
) -> tuple[Piece, ...]:
    """Return the rows of a split in each shard: one piece, or with folds several pieces.

    Args:
        shards: number of rows by block of each shard, in the order of its file.
        split: name of the split.
        fold: fold that a run tests on, see `folds.split_of`.
    """
    pieces = []
    for shard, rows in enumerate(shards):
        found: list[Piece] = []
        end = 0
        for block, number in rows.items():
            first, end = end, end + number
            if split_of(block, fold) != split:
                continue
            if found and found[-1].last == first:
                found[-1] = Piece(shard, found[-1].first, end)
            else:
                found.append(Piece(shard, first, end))
        filled = [piece for piece in found if piece.first < piece.last]
        pieces += filled or found[:1]
    return tuple(pieces)


def num_rows(pieces: Iterable[Piece]) -> int:
    """Return the number of rows in all pieces."""
    return sum(piece.last - piece.first for piece in pieces)


class Line:
    """Concatenated rows of pieces, with a fast search for ranges of them."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._ends = np.cumsum([piece.last - piece.first for piece in pieces])

    def cut(self, first: int, last: int) -> tuple[Piece, ...]:
        """Return the pieces with rows [first, last)."""
        found = []
        begin = int(np.searchsorted(self._ends, first, side="right"))
        for place in range(begin, len(self.pieces)):
            piece = self.pieces[place]
            start = int(self._ends[place]) - (piece.last - piece.first)
            if start >= last:
                break
            low, high = max(first - start, 0), min(last - start, piece.last - piece.first)
            if low < high:
                found.append(Piece(piece.shard, piece.first + low, piece.first + high))
        return tuple(found)
