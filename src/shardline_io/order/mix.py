"""Several parts mixed by weight: datasets, or the classes of one, each in an order of its own.

A sample's place t is its number in the training, over all epochs. Of the first t samples all but
the last part have given round(t * share), halves up; of these n all but the last two parts have
given round(n * share) by their share of them, and so on. Each part's count is then within a few
samples of t times its weight, for ever, and never goes back. The places within a global batch are
shuffled. A part is passed through in its own order, pass after pass, whatever happens to the
others; an epoch is a number of samples and ends no pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from shardline_io.errors import DataError
from shardline_io.order.pieces import Line, Piece, num_rows
from shardline_io.order.sampling import Order, TrainOrder, permutation


@dataclass(frozen=True)
class MixPart:
    """What a mix is made of.

    Attributes:
        key: decides the part's own order, as a dataset's id does.
        pieces: its units in each of its shards.
        weight: its share of the samples, in relation to those of the others.
        name: what messages call it.
    """

    key: str
    pieces: tuple[Piece, ...]
    weight: Fraction
    name: str = ""


@dataclass(frozen=True)
class MixedWindow:
    """Batches whose units are in memory together.

    Attributes:
        pieces: by part, the units to be in memory; one may stand there twice, of two passes.
        part: of what this rank consumes, in order [n] int64.
        unit: index into the concatenated pieces of the part [n] int64.
        passes: which pass through the part a unit is of [n] int64.
        bounds: batch b is [bounds[b], bounds[b + 1]) of these; [num_batches + 1] int64.
        weights: [n] float32, see `sampling.Window`.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    part: np.ndarray
    unit: np.ndarray
    passes: np.ndarray
    bounds: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class MixOrder:
    """The order of a mix, as one rank sees it.

    Attributes:
        parts: in the order in which their weights are added up.
        global_batch: samples of an optimiser step over all ranks.
        window_rows: units in memory at a time, over all parts; at least one global batch.
        epoch_samples: samples of an epoch; what is no whole global batch of them is left out.
        accumulate: parts into which a rank splits its slice.

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

    def __post_init__(self) -> None:
        for part in self.parts:
            if not num_rows(part.pieces):
                raise DataError(
                    f"{part.name or part.key} has nothing to train on, expected a row at least; leave it out of the "
                    "mix, or give it rows"
                )
            if part.weight <= 0:
                raise DataError(
                    f"{part.name or part.key} has the weight {part.weight}, expected more than 0; leave it out"
                )
        if self.epoch_samples < self.global_batch:
            raise DataError(
                f"an epoch has {self.epoch_samples:,} samples, expected global_batch={self.global_batch} at least; "
                "raise data.epoch_samples or use a smaller batch"
            )

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The units of all parts, with the shards of each numbered after those of the parts before."""
        return joined([part.pieces for part in self.parts])

    def steps(self, epoch: int) -> int:
        """Return the global batches of an epoch; all are alike."""
        return self.epoch_samples // self.global_batch

    def num_batches(self, epoch: int) -> int:
        """Return the batches of an epoch, for one rank: its parts of the global batches."""
        return self.steps(epoch) * self.accumulate

    def batches_per_window(self) -> int:
        """Return the batches of every window but the last, for one rank."""
        return self._steps_per_window * self.accumulate

    @property
    def _steps_per_window(self) -> int:
        return max(1, self.window_rows // self.global_batch)

    def given(self, samples: int) -> list[int]:
        """Return how many of the first samples each part has given."""
        counts: list[int] = []
        for share in self._shares:
            before = int((samples * share * 2 + 1) // 2)
            counts.append(samples - before)
            samples = before
        return counts[::-1]

    @cached_property
    def _shares(self) -> list[Fraction]:
        """From the last part on, the share of those before it in all up to it; 0 for the first part."""
        sums = list(itertools.accumulate(part.weight for part in self.parts))
        falling = [*sums[::-1], Fraction(0)]
        return [before / total for total, before in zip(falling, falling[1:])]

    @cached_property
    def _lines(self) -> dict[tuple[int, int], Line]:
        return {}

    def _line(self, number: int, pass_: int) -> Line:
        """Return a part's units in the order of the shards in one pass."""
        if (number, pass_) not in self._lines:
            for known in [one for one in self._lines if one[0] == number and one[1] < pass_]:
                del self._lines[known]
            part = self.parts[number]
            order = permutation(len(part.pieces), part.key, self.seed, "pass", pass_)
            self._lines[number, pass_] = Line([part.pieces[i] for i in order])
        return self._lines[number, pass_]

    def window(self, epoch: int, index: int) -> MixedWindow:
        """Return a window: its units by part, and which of them this rank consumes."""
        first = index * self._steps_per_window
        steps = min(self._steps_per_window, self.steps(epoch) - first)
        first += epoch * self.steps(epoch)
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
        """Return the part, and the place in the part's own sequence, of each sample of a step [B, 2]."""
        counts = given[1] - given[0]
        part = np.repeat(np.arange(len(self.parts)), counts)
        place = np.concatenate([np.arange(low, high) for low, high in given.T])
        order = permutation(self.global_batch, self.seed, "slots", step)
        slots: np.ndarray = np.stack([part, place], axis=1)[order]
        return slots

    def _span(
        self, number: int, first: int, last: int
    ) -> tuple[tuple[Piece, ...], np.ndarray, np.ndarray]:
        """Return units [first, last) of a part's own sequence: pieces, indexes into them, passes."""
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

    @property
    def num_slices(self) -> int:
        """Batches that a global batch is split into, over all ranks."""
        return self.world_size * self.accumulate

    def whole(self) -> MixOrder:
        """Return the order of whole global batches, as a single rank would see it."""
        return replace(self, rank=0, world_size=1, accumulate=1)


def joined(parts: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
    """Return the pieces of several parts, with the shards of each numbered after those before."""
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
    """Return a window of any order.

    Args:
        order: of one part, or one over the `joined` pieces of several.
        parts: the pieces of each part, as they were joined.
    """
    if isinstance(order, MixOrder):
        return order.window(epoch, index)
    window = order.window(epoch, index)
    pass_ = epoch // order.num_parts if isinstance(order, TrainOrder) else 0
    firsts = np.array(list(_firsts(parts)))
    part_of = [int(np.searchsorted(firsts, p.shard, side="right")) - 1 for p in window.pieces]
    own: list[list[Piece]] = [[] for _ in parts]
    ends, starts = (
        [],
        [],
    )  # of each piece: its end in all pieces, and its begin among those of its part
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
