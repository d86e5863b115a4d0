"""Ranges of rows in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Rows [first, last) of one shard."""

    shard: int
    first: int
    last: int


def split_pieces(shards: Iterable[Mapping[str, int]], split: str) -> tuple[Piece, ...]:
    """Return the rows of a split in each shard.

    Args:
        shards: number of rows by split of each shard, in the order of its file.
        split: name of the split.
    """
    pieces = []
    for shard, rows in enumerate(shards):
        names = list(rows)
        first = sum(rows[name] for name in names[: names.index(split)])
        pieces.append(Piece(shard, first, first + rows[split]))
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
