"""What a rank has to know of global batches whose samples lie on other ranks as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.mix import MixedWindow, MixOrder
from shardline_io.order.sampling import Order, Window


@dataclass(frozen=True)
class Counted:
    """How many values of a varying column global batches have, for each batch of a rank's window.

    Attributes:
        longest: the most values of a sample of the global batch [batches] int64.
        mean: values of all samples of the global batch, divided by the batches that it is split
            into [batches] float64. Samples that only fill it up do not count.
    """

    longest: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(
        cls, lengths: np.ndarray, whole: Window | MixedWindow, order: Order | MixOrder
    ) -> Counted:
        """Return what a window's global batches have.

        Args:
            lengths: values of each sample of the window, over all ranks [n] int64.
            whole: the window of `order.whole()`.
            order: this rank's.
        """
        firsts, accumulate = whole.bounds[:-1], getattr(order, "accumulate", 1)
        real = lengths if whole.weights is None else lengths * (whole.weights > 0)
        return cls(
            longest=np.repeat(np.maximum.reduceat(lengths, firsts), accumulate),
            mean=np.repeat(np.add.reduceat(real, firsts) / order.num_slices, accumulate),
        )
