"""Properties of global batches that a rank needs although other ranks have some of the samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.mix import MixedWindow, MixOrder
from shardline_io.order.sampling import Order, Window


@dataclass(frozen=True)
class Counted:
    """Numbers of values of a varying column in the global batch of each batch in a rank's window.

    Attributes:
        longest: number of values of the longest sample in the global batch [batches] int64.
        mean: number of values in the global batch, without padding rows, divided by the number of
            batches that it is split into [batches] float64.
    """

    longest: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(
        cls, lengths: np.ndarray, whole: Window | MixedWindow, order: Order | MixOrder
    ) -> Counted:
        """Count the values in the global batches of a window.

        Args:
            lengths: number of values of each sample in the window, over all ranks [n] int64.
            whole: window of `order.whole()`.
            order: order of this rank.
        """
        firsts, accumulate = whole.bounds[:-1], getattr(order, "accumulate", 1)
        real = lengths if whole.weights is None else lengths * (whole.weights > 0)
        return cls(
            longest=np.repeat(np.maximum.reduceat(lengths, firsts), accumulate),
            mean=np.repeat(np.add.reduceat(real, firsts) / order.num_slices, accumulate),
        )
