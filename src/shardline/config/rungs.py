"""Rungs of a sweep: which trainings a study has, and what each decision looks at.

A bracket is `keep ** (rungs - 1)` trials, of which one reaches the last rung. Each time that `keep` more trials of a
rung have ended, one is promoted: the best of the bracket so far that was not promoted. So the number of promotions
depends on no result, and every training of a study is known before the first begins.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

_NAME = re.compile(r"r([1-9]\d*)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Place of a promotion.

    Attributes:
        rung: Number of the rung that a trial is promoted to, from 1.
        place: Number of the promotion among all to this rung, from 0.
    """

    rung: int
    place: int

    def __str__(self) -> str:
        """Return the name of the folder."""
        return f"r{self.rung}-{self.place}"


AnySlot = int | Slot  # the number of a trial, or a promotion


def slot_of(name: str) -> AnySlot:
    """Return the slot with a name; see `Slot.__str__`."""
    found = _NAME.fullmatch(name)
    return Slot(rung=int(found[1]), place=int(found[2])) if found else int(name)


def rung_of(slot: AnySlot) -> int:
    """Return the rung of a slot; 0 for a trial."""
    return slot.rung if isinstance(slot, Slot) else 0


@dataclass(frozen=True, kw_only=True)
class Brackets:
    """The promotions of successive halving.

    Attributes:
        rungs: Epochs of each rung.
        keep: One of so many trials of a rung is promoted.
    """

    rungs: Sequence[int]
    keep: int

    @property
    def size(self) -> int:
        """Trials of a bracket."""
        return int(self.keep ** (len(self.rungs) - 1))

    def places(self, rung: int, trials: int) -> int:
        """Return how many of the first trials reach a rung."""
        return int(trials // self.keep**rung)

    def slots(self, trials: int) -> list[Slot]:
        """Return all promotions of a study."""
        return [
            Slot(rung=rung, place=place)
            for rung in range(1, len(self.rungs))
            for place in range(self.places(rung, trials))
        ]

    def of_bracket(self, slot: Slot) -> tuple[int, int]:
        """Return the number of a promotion in its bracket, from 0, and how many to its rung the bracket has."""
        most = self.keep ** (len(self.rungs) - 1 - slot.rung)
        return slot.place % most, most

    def needs(self, slot: Slot) -> tuple[Slot | None, list[AnySlot]]:
        """Return the promotion before, in the same bracket, and the slots whose results join its candidates."""
        number, _ = self.of_bracket(slot)
        before = Slot(rung=slot.rung, place=slot.place - 1) if number else None
        new = range(self.keep * slot.place, self.keep * (slot.place + 1))
        return before, [Slot(rung=slot.rung - 1, place=p) if slot.rung > 1 else p for p in new]

    def news(self, trials: int, parallel: Callable[[int], int]) -> list[list[AnySlot]]:
        """Return the slots whose results each trial's proposal is the first to know, in order.

        They follow from a clock on which an epoch takes one unit of time. As many trainings as may run at the same
        time begin, promotions first. A proposal knows what has ended on this clock. So no proposal waits for a long
        training beside which more short ones fit.

        Args:
            parallel: Function that returns how many trainings may run when a trial is proposed.
        """
        costs = [rung - before for rung, before in zip(self.rungs, [0, *self.rungs], strict=False)]
        begun, ended = [0] * len(costs), [0] * len(costs)
        flying: list[tuple[int, int, int, int]] = []
        found: list[list[AnySlot]] = []
        now, pending = 0, list[AnySlot]()
        while len(found) < trials:
            if len(flying) >= parallel(len(found)):
                now, _, rung, place = heappop(flying)
                ended[rung] += 1
                pending.append(Slot(rung=rung, place=place) if rung else place)
                continue
            ready = (
                rung
                for rung in range(len(costs) - 1, 0, -1)
                if ended[rung - 1] >= self.keep * (begun[rung] + 1)
            )
            rung = next(ready, 0)
            if not rung:
                found.append(pending)
                pending = []
            heappush(flying, (now + costs[rung], sum(begun), rung, begun[rung]))
            begun[rung] += 1
        return found
