"""Orders of held-out rows: of a whole split over all ranks, and of chosen rows on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardline_io.errors import DataError
from shardline_io.order.pieces import Line, Piece, num_rows
from shardline_io.order.sampling import Window


@dataclass(frozen=True)
class HeldOutOrder:
    """Order of a held-out split: every row once, the same number of batches on each rank.

    The rows are split into almost equal global batches, and these into almost equal slices. So no
    rank waits for another, and no batch is padded.

    Attributes:
        pieces: the split's rows in each shard.
        global_batch: maximum number of samples in a step, over all ranks.
        window_rows: rows in memory at a time.
        is_whole: return whole global batches instead of this rank's slices.
    """

    pieces: tuple[Piece, ...]
    global_batch: int
    window_rows: int
    rank: int = 0
    world_size: int = 1
    is_whole: bool = False

    def __post_init__(self) -> None:
        if self.num_rows < self.world_size:
            raise DataError(
                f"a held-out split has {self.num_rows} rows, expected at least one for each of "
                f"{self.world_size} ranks; enlarge the split"
            )

    @cached_property
    def num_rows(self) -> int:
        """Number of rows in the split."""
        return num_rows(self.pieces)

    @cached_property
    def _line(self) -> Line:
        return Line(self.pieces)

    def num_batches(self, epoch: int = 0) -> int:
        """Return the number of batches in the split, the same on each rank."""
        wanted = -(-self.num_rows // self.global_batch)
        return max(1, min(wanted, self.num_rows // self.world_size))

    def batches_per_window(self) -> int:
        """Return the number of batches in every window but the last."""
        return max(1, self.window_rows // self.global_batch)

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; it is the same in all epochs."""
        total = self.num_batches()
        batches = np.arange(total)[index * self.batches_per_window() :][: self.batches_per_window()]
        ranks, rank = (1, 0) if self.is_whole else (self.world_size, self.rank)
        slices = batches * ranks + rank
        firsts = self.num_rows * slices // (total * ranks)
        lasts = self.num_rows * (slices + 1) // (total * ranks)
        begin = int(self.num_rows * int(batches[0]) // total)
        pieces = self._line.cut(begin, int(self.num_rows * (int(batches[-1]) + 1) // total))
        rows = np.concatenate([np.arange(a, b) for a, b in zip(firsts, lasts)])
        bounds = np.concatenate([[0], np.cumsum(lasts - firsts)])
        return Window(pieces, rows - begin, bounds)

    @property
    def num_slices(self) -> int:
        """Number of batches that a global batch is split into: one per rank."""
        return self.world_size

    def whole(self) -> HeldOutOrder:
        """Return the order of whole global batches, with the same number of batches."""
        return replace(self, is_whole=True)


@dataclass(frozen=True)
class PickedOrder(HeldOutOrder):
    """Order of chosen rows of a held-out split on one rank, each as a batch; reads no other row.

    Attributes:
        places: indices of the rows in the split, ascending.
    """

    places: tuple[int, ...] = ()

    def num_batches(self, epoch: int = 0) -> int:
        """Return the number of rows."""
        return len(self.places)

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; it is the same in all epochs."""
        per_window = self.batches_per_window()
        places = self.places[index * per_window :][:per_window]
        pieces = [piece for place in places for piece in self._line.cut(place, place + 1)]
        return Window(tuple(pieces), np.arange(len(places)), np.arange(len(places) + 1))

    def whole(self) -> PickedOrder:
        """Return this order."""
        return self
