"""Rows of shards as ranges, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Rows [first, last) of one shard's file."""

    shard: int
    first: int
    last: int


def split_pieces(shards: Iterable[Mapping[str, int]], split: str) -> tuple[Piece, ...]:
    """Return where the rows of a split lie, shard by shard.

    Args:
        shards: the rows of each by split, in the order of its file.
    """
    pieces = []
    for shard, rows in enumerate(shards):
        names = list(rows)
        first = sum(rows[name] for name in names[: names.index(split)])
        pieces.append(Piece(shard, first, first + rows[split]))
    return tuple(pieces)


def num_rows(pieces: Iterable[Piece]) -> int:
    """Return the rows of all pieces."""
    return sum(piece.last - piece.first for piece in pieces)


class Line:
    """The rows of pieces one after another; a part is found without a walk through all pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._ends = np.cumsum([piece.last - piece.first for piece in pieces])

    def cut(self, first: int, last: int) -> tuple[Piece, ...]:
        """Return rows [first, last), as pieces."""
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
