"""Order of a mix by weight: of several datasets, or of the classes of one dataset.

A sample's place t is its number in the training, over all epochs. Among the first t samples,
round(t * share) belong to the parts before the last, where halves round up. Among these n samples,
round(n * share) belong to the parts before the last two, and so on. So each part's count always
stays within a few samples of t times its weight, and never decreases. The places within a global
batch are shuffled. Each part is visited in its own order, pass after pass, independently of the
other parts. An epoch is a number of samples: a pass continues in the next epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from shardline_io.errors import DataError
from shardline_io.order.lengths import ALL, Lengths, Limited
from shardline_io.order.pieces import Line, Piece, num_rows
from shardline_io.order.sampling import Order, TrainOrder, permutation


@dataclass(frozen=True)
class MixPart:
    """One part of a mix: a dataset or a class.

    Attributes:
        key: text from which the part's own order is derived, like a dataset's id.
        pieces: units of the part in each of its shards.
        weight: share of the samples, relative to the weights of the other parts.
        name: name of the part in messages.
    """

    key: str
    pieces: tuple[Piece, ...]
    weight: Fraction
    name: str = ""


@dataclass(frozen=True)
class MixedWindow:
    """Batches whose units are in memory together.

    Attributes:
        pieces: units that must be in memory, by part; a unit of two passes is listed twice.
        part: part of each unit that this rank consumes, in order [n] int64.
        unit: index of each unit in the concatenated pieces of its part [n] int64.
        passes: pass over the part that each unit belongs to [n] int64.
        bounds: batch b has units [bounds[b], bounds[b + 1]); [num_batches + 1] int64.
        weights: weight of each unit [n] float32, see `sampling.Window`.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    part: np.ndarray
    unit: np.ndarray
    passes: np.ndarray
    bounds: np.ndarray
    weights: np.ndarray | None = None

    def first(self, num_batches: int) -> MixedWindow:
        """Return the window with only its first batches."""
        if num_batches + 1 >= len(self.bounds):
            return self
        units = slice(0, int(self.bounds[num_batches]))
        return replace(
            self,
            part=self.part[units],
            unit=self.unit[units],
            passes=self.passes[units],
            bounds=self.bounds[: num_batches + 1],
            weights=None if self.weights is None else self.weights[units],
        )


@dataclass(frozen=True)
class MixOrder(Limited):
    """Order of a mix for one rank.

    Attributes:
        parts: parts of the mix; their order decides the order of samples.
        global_batch: samples of an optimiser step over all ranks.
        window_rows: units in memory at a time, over all parts; at least one global batch.
        epoch_samples: samples of an epoch; a last partial global batch is left out.
        accumulate: number of batches into which a rank splits its slice.
        lengths: limits of the epochs and of the training.

    Raises:
        DataError: a part has no units, a weight is not positive, or an epoch has no step.
    """

    parts: tuple[MixPart, ...]
    global_batch: int
    seed: int
    window_rows: int
    epoch_samples: int
    rank: int = 0
    world_size: int = 1
    accumulate: int = 1
    lengths: Lengths = ALL

    def __post_init__(self) -> None:
        for part in self.parts:
            if not num_rows(part.pieces):
                raise DataError(
                    f"{part.name or part.key} has no train rows, expected at least one; leave it out of the mix, or "
                    "add rows"
                )
            if part.weight <= 0:
                raise DataError(
                    f"{part.name or part.key} has weight {part.weight}, expected more than 0; raise the weight or "
                    "leave the part out of the mix"
                )
        if self.epoch_samples < self.global_batch:
            raise DataError(
                f"an epoch has {self.epoch_samples:,} samples, expected at least global_batch={self.global_batch}; "
                "raise data.epoch_samples or lower global_batch"
            )

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Units of all parts, with shards numbered consecutively over the parts."""
        return joined([part.pieces for part in self.parts])

    def all_steps(self, epoch: int) -> int:
        """Return the number of global batches in an epoch without limits, the same for all epochs."""
        return self.epoch_samples // self.global_batch

    def given(self, samples: int) -> list[int]:
        """Return how many of the first samples come from each part."""
        counts: list[int] = []
        for share in self._shares:
            before = int((samples * share * 2 + 1) // 2)
            counts.append(samples - before)
            samples = before
        return counts[::-1]

    @cached_property
    def _shares(self) -> list[Fraction]:
        """For each part from the last on, the share of the earlier parts among all up to this one."""
        sums = list(itertools.accumulate(part.weight for part in self.parts))
        falling = [*sums[::-1], Fraction(0)]
        return [before / total for total, before in zip(falling, falling[1:])]

    @cached_property
    def _lines(self) -> dict[tuple[int, int], Line]:
        return {}

    def _line(self, number: int, pass_: int) -> Line:
        """Return a part's units in one pass, with its shards in shuffled order."""
        if (number, pass_) not in self._lines:
            for known in [one for one in self._lines if one[0] == number and one[1] < pass_]:
                del self._lines[known]
            part = self.parts[number]
            order = permutation(len(part.pieces), part.key, self.seed, "pass", pass_)
            self._lines[number, pass_] = Line([part.pieces[i] for i in order])
        return self._lines[number, pass_]

    def window(self, epoch: int, index: int) -> MixedWindow:
        """Return a window: its units by part, and the units that this rank consumes."""
        taken = (self.steps(epoch) - index * self._steps_per_window) * self.accumulate
        return self._whole_window(self._visited(epoch), index).first(taken)

    def _whole_window(self, epoch: int, index: int) -> MixedWindow:
        first = index * self._steps_per_window
        steps = min(self._steps_per_window, self.all_steps(epoch) - first)
        first += epoch * self.all_steps(epoch)
        given = np.array(
            [self.given(s * self.global_batch) for s in range(first, first + steps + 1)]
        )
        spans = [self._span(j, *given[[0, -1], j].tolist()) for j in range(len(self.parts))]
        slots = [self._slots(first + step, given[step : step + 2]) for step in range(steps)]
        mine = self.global_batch // self.world_size
        chosen = np.stack(slots)[:, self.rank * mine : (self.rank + 1) * mine].reshape(-1, 2)
        part, place = chosen[:, 0], chosen[:, 1]
        place = place - given[0][part]
        unit, passes = np.empty_like(place), np.empty_like(place)
        for number, (_, units, turns) in enumerate(spans):
            of_part = part == number
            unit[of_part] = units[place[of_part]]
            passes[of_part] = turns[place[of_part]]
        bounds = np.arange(0, len(part) + 1, mine // self.accumulate)
        return MixedWindow(tuple(span[0] for span in spans), part, unit, passes, bounds)

    def _slots(self, step: int, given: np.ndarray) -> np.ndarray:
        """Return part and place in the part's own sequence of each sample in a step [B, 2]."""
        counts = given[1] - given[0]
        part = np.repeat(np.arange(len(self.parts)), counts)
        place = np.concatenate([np.arange(low, high) for low, high in given.T])
        order = permutation(self.global_batch, self.seed, "slots", step)
        slots: np.ndarray = np.stack([part, place], axis=1)[order]
        return slots

    def _span(
        self, number: int, first: int, last: int
    ) -> tuple[tuple[Piece, ...], np.ndarray, np.ndarray]:
        """Return units [first, last) of a part's own sequence: pieces, indices into them, passes."""
        part, before = self.parts[number], 0
        pieces: list[Piece] = []
        units, turns = [], []
        size = num_rows(part.pieces)
        for pass_ in range(first // size, -(-last // size)):
            low, high = max(first - pass_ * size, 0), min(last - pass_ * size, size)
            pieces += self._line(number, pass_).cut(low, high)
            key = (part.key, self.seed, "mix", pass_, low)
            units.append(permutation(high - low, *key) + before)
            turns.append(np.full(high - low, pass_))
            before += high - low
        none = [np.empty(0, np.int64)]
        return tuple(pieces), np.concatenate(units or none), np.concatenate(turns or none)

    def whole(self) -> MixOrder:
        """Return the order of whole global batches, as for a single rank."""
        return replace(self, rank=0, world_size=1, accumulate=1)


def joined(parts: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
    """Return the pieces of several parts, with shards numbered consecutively over the parts."""
    found: list[Piece] = []
    for first, pieces in zip(_firsts(parts), parts):
        found += [Piece(first + piece.shard, piece.first, piece.last) for piece in pieces]
    return tuple(found)


def _firsts(parts: Sequence[Sequence[Piece]]) -> Iterator[int]:
    """Yield the number of each part's first shard in `joined`."""
    first = 0
    for pieces in parts:
        yield first
        first += max((piece.shard for piece in pieces), default=-1) + 1


def mixed_window(
    order: Order | MixOrder, epoch: int, index: int, parts: Sequence[Sequence[Piece]]
) -> MixedWindow:
    """Return a window of any order as the window of a mix.

    Args:
        order: order of a mix, of one part, or of the `joined` pieces of several parts.
        epoch: epoch of the window.
        index: number of the window in the epoch.
        parts: pieces of each part.
    """
    if isinstance(order, MixOrder):
        return order.window(epoch, index)
    window = order.window(epoch, index)
    pass_ = epoch // order.num_parts if isinstance(order, TrainOrder) else 0
    firsts = np.array(list(_firsts(parts)))
    part_of = [int(np.searchsorted(firsts, p.shard, side="right")) - 1 for p in window.pieces]
    own: list[list[Piece]] = [[] for _ in parts]
    # end of each piece in all pieces, and its shift from there to the pieces of its part
    ends, starts = [], []
    total, totals = 0, [0] * len(parts)
    for piece, number in zip(window.pieces, part_of):
        size = piece.last - piece.first
        own[number].append(Piece(piece.shard - int(firsts[number]), piece.first, piece.last))
        starts.append(totals[number] - total)
        totals[number] += size
        total += size
        ends.append(total)
    of_row = np.searchsorted(np.array(ends), window.rows, side="right")
    return MixedWindow(
        pieces=tuple(map(tuple, own)),
        part=np.array(part_of, np.int64)[of_row],
        unit=window.rows + np.array(starts, np.int64)[of_row],
        passes=np.full(len(window.rows), pass_),
        bounds=window.bounds,
        weights=window.weights,
    )
