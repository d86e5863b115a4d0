"""Single rows of a held-out split, each a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import Window


@dataclass(frozen=True)
class PickedOrder(HeldOutOrder):
    """Rows of a held-out split by their place in it, on one rank; no other row is read.

    Attributes:
        places: of the rows, ascending.
    """

    places: tuple[int, ...] = ()

    def num_batches(self, epoch: int = 0) -> int:
        """Return the number of rows."""
        return len(self.places)

    def window(self, epoch: int, index: int) -> Window:
        """Return a window; all epochs are alike."""
        per_window = self.batches_per_window()
        places = self.places[index * per_window :][:per_window]
        pieces = [piece for place in places for piece in self._line.cut(place, place + 1)]
        return Window(tuple(pieces), np.arange(len(places)), np.arange(len(places) + 1))

    def whole(self) -> PickedOrder:
        """Return this order."""
        return self
