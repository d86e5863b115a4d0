"""Which rows a step consumes: the same global batches, in the same order, at any world size.

The batch sequence is a function of (dataset, seed, epoch). Rank r of W takes
the r-th of W equal slices of each global batch, so neither W nor the number of
loading processes changes which samples a step consumes.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from shardline.errors import DataError


def epoch_order(num_rows: int, *, dataset_id: str, seed: int, epoch: int) -> np.ndarray:
    """Return the order [num_rows] in which an epoch visits a split.

    A function of its arguments alone: never of rank, world size or history.
    The dataset counts by its identity digest, so renaming it changes nothing.
    """
    text = f"{dataset_id[-12:]}/{seed}/{epoch}".encode()
    key = np.frombuffer(hashlib.sha256(text).digest()[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_rows)


class TrainBatches(Sampler[list[int]]):
    """This rank's part of each global batch; the last partial global batch is dropped.

    Args:
        num_rows: rows of the train split.
        dataset_id: the dataset's id; with `seed` it decides the order.
        global_batch: samples per optimiser step over all ranks.
        accumulate: parts into which a rank splits its share.

    Attributes:
        start: parts of the epoch `start_epoch` already consumed, after a resume.
    """

    def __init__(
        self, num_rows: int, *, dataset_id: str, global_batch: int, seed: int, rank: int = 0,
        world_size: int = 1, accumulate: int = 1,
    ) -> None:  # fmt: skip
        self.num_rows, self.dataset_id = num_rows, dataset_id
        self.global_batch, self.seed = global_batch, seed
        self.rank, self.world_size, self.accumulate = rank, world_size, accumulate
        self.epoch, self.start_epoch, self.start = 0, 0, 0
        if num_rows < global_batch:
            raise DataError(
                f"global_batch={global_batch} is more than the {num_rows} train rows of "
                f"{dataset_id}; use a smaller batch or more data"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration takes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_rows // self.global_batch * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(
            self.num_rows, dataset_id=self.dataset_id, seed=self.seed, epoch=self.epoch
        )
        share = self.global_batch // self.world_size
        part = share // self.accumulate
        first = self.start if self.epoch == self.start_epoch else 0
        for index in range(first, len(self)):
            step, piece = divmod(index, self.accumulate)
            begin = step * self.global_batch + self.rank * share + piece * part
            yield order[begin : begin + part].tolist()


class HeldOutBatches(Sampler[list[int]]):
    """This rank's part of a held-out split: every row once, equally many batches on each rank.

    The rows are cut into almost equal global batches and those into almost
    equal slices, so that no rank waits for another and none is given padding.
    """

    def __init__(
        self, num_rows: int, *, global_batch: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if num_rows < world_size:
            raise DataError(
                f"{num_rows} held-out rows cannot be shared by {world_size} ranks; enlarge the split"
            )
        self.num_rows, self.rank, self.world_size = num_rows, rank, world_size
        self.num_batches = max(1, min(-(-num_rows // global_batch), num_rows // world_size))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        slices = self.num_batches * self.world_size
        for batch in range(self.num_batches):
            piece = batch * self.world_size + self.rank
            first, last = self.num_rows * piece // slices, self.num_rows * (piece + 1) // slices
            yield list(range(first, last))
