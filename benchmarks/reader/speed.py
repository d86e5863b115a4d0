"""Samples a second: in each round every competitor has a turn, in processes that stay alive."""

import math
import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.reader.competitors import Competitor
from benchmarks.reader.crew import CompetitorError, Crew
from benchmarks.reader.data import verify
from benchmarks.reader.formats import folder_of, home_of, warm
from benchmarks.reader.plan import Plan

Log = Callable[[str], None]


class Turn:
    """A competitor in one cell, ready to take turns.

    Args:
        crew: its processes.
        turn_s: about how long a turn is to be.

    Raises:
        CompetitorError: it cannot read.
    """

    def __init__(self, crew: Crew, folder: Path, shape: str, batch: int, turn_s: float) -> None:
        self._crew, self._turn_s = crew, turn_s
        self._where = {"folder": str(folder), "shape": shape, "batch": batch}
        self.rates: list[float] = []
        variants = crew.competitor.variants
        rates = [self._open(variant) for variant in variants]
        best = max(range(len(variants)), key=rates.__getitem__)
        self.variant = variants[best]
        if best != len(variants) - 1:
            self._open(self.variant)

    def take(self) -> None:
        """Have a turn."""
        self.rates.append(self._rate(self._num_batches, untimed=self._untimed))

    @property
    def rows(self) -> int:
        """Rows that all turns have taken, those that were not timed too."""
        batches = len(self.rates) * (self._num_batches + self._untimed)
        return batches * self._where["batch"] * self._crew.world_size

    def result(self) -> dict[str, Any]:
        """Return the rates and their median."""
        return {
            "competitor": self._crew.competitor.name,
            "variant": self.variant,
            "median": statistics.median(self.rates),
            "rates": [round(rate, 1) for rate in self.rates],
        }

    def _open(self, variant: dict[str, Any]) -> float:
        """Open a stream, find how many batches fill a turn, and return the samples a second."""
        ranks = [
            {"rank": rank, "world_size": self._crew.world_size}
            for rank in range(self._crew.world_size)
        ]
        self._crew.ask("open", **self._where, options=variant, per_rank=ranks)
        self._untimed = ahead = 4 * variant.get("workers", 0)  # batches that wait in queues
        self._rate(1 + ahead)
        num_batches = max(1, ahead)
        while (seconds := self._seconds(rate := self._rate(num_batches), num_batches)) < (
            self._turn_s / 2
        ):
            num_batches *= 4
        self._num_batches = max(1, ahead, math.ceil(num_batches * self._turn_s / seconds))
        self._untimed = max(ahead, self._num_batches // 20)
        return rate

    def _rate(self, num_batches: int, untimed: int = 0) -> float:
        replies = self._crew.ask("take", num_batches=num_batches, untimed=untimed)
        return sum(r["rows"] for r in replies) / max(r["seconds"] for r in replies)

    def _seconds(self, rate: float, num_batches: int) -> float:
        return num_batches * self._where["batch"] * self._crew.world_size / rate


def measure(competitors: Iterable[Competitor], plan: Plan, log: Log) -> list[dict[str, Any]]:
    """Return an entry for each cell and competitor, with the median of its rounds."""
    competitors, results = list(competitors), []
    _prepare(competitors, plan, log)
    for ranks in sorted({cell[2] for cell in plan.cells}):
        crews = _start(competitors, plan, ranks, log)
        for shape, batch, _ in (cell for cell in plan.cells if cell[2] == ranks):
            log(f"{shape}, batch {batch}, {ranks} rank{'s' * (ranks > 1)}")
            cell = {"shape": shape, "batch": batch, "ranks": ranks}
            results += [cell | entry for entry in _measure_cell(crews, plan, shape, batch, log)]
        for crew in crews.values():
            crew.stop()
    return results


def _prepare(competitors: list[Competitor], plan: Plan, log: Log) -> None:
    """Write the files that are missing, and read all files into the page cache."""
    for shape in dict.fromkeys(cell[0] for cell in plan.cells):
        for competitor in competitors:
            log(f"{shape} rows for {competitor.name}")
            with suppress(CompetitorError):  # reported when its turn is opened
                warm(folder_of(competitor, shape, plan.shards[shape], plan.cache))
        verify(home_of(shape, plan.shards[shape], plan.cache) / "shardline")


def _start(competitors: list[Competitor], plan: Plan, ranks: int, log: Log) -> dict[str, Crew]:
    crews = {}
    for competitor in competitors:
        try:
            crews[competitor.name] = Crew(competitor, plan.cache, ranks)
        except CompetitorError as error:
            log(f"{competitor.name} left out: {error}")
    return crews


def _measure_cell(
    crews: dict[str, Crew], plan: Plan, shape: str, batch: int, log: Log
) -> list[dict[str, Any]]:
    turns: dict[str, Turn] = {}
    failed: dict[str, str] = {}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except CompetitorError as error:
            log(f"{name} failed: {error}")
            failed[name] = str(error)
            crews[name].stop()
            crews[name] = Crew(crews[name].competitor, plan.cache, crews[name].world_size)

    def open_turn(name: str) -> None:
        folder = folder_of(crews[name].competitor, shape, plan.shards[shape], plan.cache)
        turns[name] = Turn(crews[name], folder, shape, batch, plan.turn_s)

    for name in crews:
        attempt(name, partial(open_turn, name))
    for _ in range(plan.rounds):
        for name in (name for name in crews if name not in failed):
            attempt(name, turns[name].take)
    return [
        {"competitor": name, "failed": failed[name]} if name in failed else turns[name].result()
        for name in crews
    ]
