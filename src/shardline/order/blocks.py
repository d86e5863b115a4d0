"""A held-out split in blocks of rows by their number, each on one rank."""

from dataclasses import dataclass

import numpy as np

from shardline.order.held_out import HeldOutOrder
from shardline.order.sampling import Window


@dataclass(frozen=True, kw_only=True)
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
        return max(1, min(-(-self.num_rows // self.global_batch), self.num_rows))

    def num_batches(self, epoch: int = 0) -> int:
        """Return the blocks of this rank."""
        return len(range(self.rank, self.num_blocks, self.world_size))

    def bounds(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each block, and the row behind its last [blocks] int64."""
        firsts = self.num_rows * blocks // self.num_blocks
        return firsts, self.num_rows * (blocks + 1) // self.num_blocks

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; all epochs are alike."""
        own = np.arange(self.rank, self.num_blocks, self.world_size)
        per_window = self.batches_per_window()
        firsts, lasts = self.bounds(own[index * per_window :][:per_window])
        pieces = [
            piece
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
            for piece in self._line.cut(first, last)
        ]
        bounds = np.concatenate([[0], np.cumsum(lasts - firsts)])
        return Window(tuple(pieces), np.arange(bounds[-1]), bounds)

    @property
    def num_slices(self) -> int:
        """A block is on one rank."""
        return 1

    def whole(self) -> "BlockOrder":
        """Return this order, each of whose batches is a whole block."""
        return self
