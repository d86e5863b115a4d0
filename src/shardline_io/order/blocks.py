"""A held-out split in blocks of rows by their number, each on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import Window


def count_blocks(num_rows: int, batch: int) -> int:
    """Return the blocks that rows are cut into."""
    return max(1, min(-(-num_rows // batch), num_rows))


@dataclass(frozen=True)
class BlockOrder(HeldOutOrder):
    """A held-out split, every row once: block k is a batch of rank k mod `world_size`.

    Blocks are the same rows for any number of ranks, almost equal in size. A rank has one block more
    than another, and none where there are fewer blocks than ranks.
    """

    def __post_init__(self) -> None:
        """Take any number of ranks."""

    @property
    def num_blocks(self) -> int:
        """Blocks of all ranks."""
        return count_blocks(self.num_rows, self.global_batch)

    @property
    def own(self) -> np.ndarray:
        """This rank's blocks [n], in their order."""
        return np.arange(self.rank, self.num_blocks, self.world_size)

    def num_batches(self, epoch: int = 0) -> int:
        """Return the blocks of this rank."""
        return len(self.own)

    def bounds(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each block, and the row behind its last [blocks] int64."""
        firsts = self.num_rows * blocks // self.num_blocks
        return firsts, self.num_rows * (blocks + 1) // self.num_blocks

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; all epochs are alike."""
        per_window = self.batches_per_window()
        firsts, lasts = self.bounds(self.own[index * per_window :][:per_window])
        pieces = [
            piece
            for first, last in zip(firsts.tolist(), lasts.tolist())
            for piece in self._line.cut(first, last)
        ]
        bounds = np.concatenate([[0], np.cumsum(lasts - firsts)])
        return Window(tuple(pieces), np.arange(bounds[-1]), bounds)

    @property
    def num_slices(self) -> int:
        """A block is on one rank."""
        return 1

    def whole(self) -> BlockOrder:
        """Return this order, each of whose batches is a whole block."""
        return self


@dataclass(frozen=True)
class ChosenBlocks(BlockOrder):
    """Some blocks of a split.

    Attributes:
        chosen: their numbers, in their order.
    """

    chosen: tuple[int, ...] = ()

    @property
    def own(self) -> np.ndarray:
        """The chosen blocks [n]."""
        return np.array(self.chosen, dtype=np.int64)
