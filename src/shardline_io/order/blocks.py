"""Orders that split a held-out split into numbered blocks of rows, each on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import Window


def count_blocks(num_rows: int, batch: int) -> int:
    """Return the number of blocks that rows are split into."""
    return max(1, min(-(-num_rows // batch), num_rows))


@dataclass(frozen=True)
class BlockOrder(HeldOutOrder):
    """Order of a held-out split in blocks: block k is a batch of rank k mod `world_size`.

    The blocks are almost equal in size, and consist of the same rows for any number of ranks. Some
    ranks have one block more than others, or no block if there are fewer blocks than ranks.
    """

    def __post_init__(self) -> None:
        """Accept any number of ranks."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks over all ranks."""
        return count_blocks(self.num_rows, self.global_batch)

    @property
    def own(self) -> np.ndarray:
        """Numbers of this rank's blocks [n], ascending."""
        return np.arange(self.rank, self.num_blocks, self.world_size)

    def num_batches(self, epoch: int = 0) -> int:
        """Return the number of this rank's blocks."""
        return len(self.own)

    def bounds(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row range [first, last) of each block, as two arrays [blocks] int64."""
        firsts = self.num_rows * blocks // self.num_blocks
        return firsts, self.num_rows * (blocks + 1) // self.num_blocks

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; it is the same in all epochs."""
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
        """Number of ranks that share a block: 1."""
        return 1

    def whole(self) -> BlockOrder:
        """Return this order, since its batches are whole blocks."""
        return self


@dataclass(frozen=True)
class ChosenBlocks(BlockOrder):
    """Order of some blocks of a held-out split.

    Attributes:
        chosen: numbers of the blocks, in order.
    """

    chosen: tuple[int, ...] = ()

    @property
    def own(self) -> np.ndarray:
        """Numbers of the chosen blocks [n]."""
        return np.array(self.chosen, dtype=np.int64)
