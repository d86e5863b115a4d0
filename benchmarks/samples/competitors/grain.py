"""Grain's `BestFitPackIterDataset`: a stream of rows goes into so many open packs."""

from pathlib import Path

import grain.python
import numpy as np
from grain.experimental import BestFitPackIterDataset


class _Rows:
    """Rows of given lengths, for `MapDataset.source`."""

    def __init__(self, lengths: np.ndarray) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {"tokens": np.ones(self._lengths[row], np.int32)}


def pack(lengths: Path, length: int, bins: int) -> int:
    """Return how many packs rows of these lengths, in a shuffled order, take.

    Args:
        lengths: NumPy file of lengths [N], each at most `length`.
        bins: packs that are open at a time.
    """
    rows = grain.python.MapDataset.source(_Rows(np.load(lengths))).shuffle(seed=1)
    packs = BestFitPackIterDataset(
        rows.to_iter_dataset(), length_struct={"tokens": length}, num_packing_bins=bins
    )
    return sum(1 for _ in packs)
