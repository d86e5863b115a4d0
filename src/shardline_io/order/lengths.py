"""Length of a training: steps of each epoch, and the step at which the training ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardline_io.order.pieces import Line, Piece, num_rows


@dataclass(frozen=True)
class Lengths:
    """Limits of a training, as `trainer.*` of its settings.

    Attributes:
        limit: steps of an epoch: a number, or a share of all steps as a float.
        max_steps: step at which the training ends; -1 for none.
        is_overfit: visit the rows of the first epoch in each epoch.
    """

    limit: int | float = 1.0
    max_steps: int = -1
    is_overfit: bool = False

    @classmethod
    def of(cls, trainer: Mapping[str, Any]) -> Lengths:
        """Return the limits in the table `trainer` of resolved settings."""
        overfit = trainer.get("overfit_batches", 0)
        return cls(
            limit=overfit or trainer.get("limit_train_batches", 1.0),
            max_steps=trainer.get("max_steps", -1),
            is_overfit=bool(overfit),
        )


ALL = Lengths()  # no limits


def part_of(whole: int, limit: int | float) -> int:
    """Return a number of at most `whole`: the limit, or a share of `whole` if it is a float."""
    return max(1, int(whole * limit)) if isinstance(limit, float) else min(whole, limit)


def first_rows(pieces: Sequence[Piece], limit: int | float) -> tuple[Piece, ...]:
    """Return the first rows of pieces: a number of rows, or a share of all rows if it is a float."""
    whole = num_rows(pieces)
    rows = part_of(whole, limit)
    return tuple(pieces) if rows >= whole else Line(pieces).cut(0, rows)


def in_rows(limit: int | float, batch: int) -> int | float:
    """Return a limit in batches as a limit in rows; a share stays as it is."""
    return limit if isinstance(limit, float) else limit * batch


class Limited:
    """Base of the orders of training rows: an order of all steps of each epoch, within `lengths`."""

    lengths: Lengths
    global_batch: int
    window_rows: int
    world_size: int
    accumulate: int

    def all_steps(self, epoch: int) -> int:
        """Return the number of global batches in an epoch without limits."""
        raise NotImplementedError

    def epoch_steps(self, epoch: int) -> int:
        """Return the number of global batches in an epoch that the training's end does not cut."""
        return part_of(self.all_steps(self._visited(epoch)), self.lengths.limit)

    def steps(self, epoch: int) -> int:
        """Return the number of global batches in an epoch; 0 after the training's end."""
        steps, last = self.epoch_steps(epoch), self.lengths.max_steps
        return steps if last < 0 else min(steps, max(0, last - self._before(epoch)))

    def num_epochs(self, max_epochs: int) -> int:
        """Return the number of epochs of a training with at most `max_epochs` epochs (-1: any number)."""
        if self.lengths.max_steps < 0:
            return max_epochs
        epoch = 0
        while epoch != max_epochs and self.steps(epoch):
            epoch += 1
        return epoch

    def total_steps(self, max_epochs: int) -> int:
        """Return the number of steps of a training with at most `max_epochs` epochs (-1: any number)."""
        return sum(self.steps(epoch) for epoch in range(self.num_epochs(max_epochs)))

    def num_batches(self, epoch: int) -> int:
        """Return one rank's number of batches in an epoch."""
        return self.steps(epoch) * self.accumulate

    def batches_per_window(self) -> int:
        """Return one rank's number of batches in every window but the last."""
        return self._steps_per_window * self.accumulate

    @property
    def _steps_per_window(self) -> int:
        return max(1, self.window_rows // self.global_batch)

    @property
    def num_slices(self) -> int:
        """Number of batches that a global batch is split into, over all ranks."""
        return self.world_size * self.accumulate

    def _visited(self, epoch: int) -> int:
        """Return the epoch whose rows an epoch visits."""
        return 0 if self.lengths.is_overfit else epoch

    def _before(self, epoch: int) -> int:
        """Return the number of steps before an epoch."""
        firsts = self._firsts
        while len(firsts) <= epoch:
            firsts.append(firsts[-1] + self.epoch_steps(len(firsts) - 1))
        return firsts[epoch]

    @cached_property
    def _firsts(self) -> list[int]:
        return [0]
