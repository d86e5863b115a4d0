"""Order of single rows of a held-out split, each as a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import Window


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
