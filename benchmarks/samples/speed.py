"""Samples a second by the clock and by CPU time: in each round every competitor has a turn."""

import math
from collections.abc import Callable
from typing import Any

from benchmarks.reader.competitors import Competitor
from benchmarks.reader.crew import CompetitorError, Crew
from benchmarks.reader.formats import warm
from benchmarks.samples.competitors import COMPETITORS
from benchmarks.samples.formats import WORKER, folder_of, plain_of
from benchmarks.samples.plan import Plan
from benchmarks.samples.task import BOXES, PHOTOS, TOKENS

Log = Callable[[str], None]
# numbers of workers by work; None leaves the faster one to a trial
CELLS: dict[str, tuple[int | None, ...]] = {PHOTOS: (0, 2), TOKENS: (None,), BOXES: (None,)}


class Turn:
    """A competitor in one cell, ready to take turns; each round gives samples a second, by clock and CPU.

    Raises:
        CompetitorError: it cannot read.
    """

    def __init__(self, competitor: Competitor, work: str, workers: int | None, plan: Plan) -> None:
        size = plan.sizes[work]
        plain, folder = (
            plain_of(work, size, plan.cache),
            folder_of(competitor, work, size, plan.cache),
        )
        warm(folder)
        self.name, self._turn_s = competitor.name, plan.turn_s
        self._where = {"work": work, "folder": str(folder), "plain": str(plain)}
        self.crew = Crew(competitor, plan.cache, worker=WORKER)
        variants = _variants(competitor, workers)
        rates = [self._open(variant) for variant in variants]
        self.variant = variants[max(range(len(variants)), key=rates.__getitem__)]
        if self.variant is not variants[-1]:
            self._open(self.variant)
        self.rates: list[tuple[float, float]] = []

    def take(self) -> None:
        """Have a turn."""
        self.rates.append(self._take(self._num_batches, self._untimed))

    def result(self) -> dict[str, Any]:
        """Return the rates of each round."""
        return {
            "competitor": self.name,
            "variant": self.variant,
            "clock": [clock for clock, _ in self.rates],
            "cpu": [cpu for _, cpu in self.rates],
        }

    def _open(self, variant: dict[str, Any]) -> float:
        """Open a stream, find how many batches fill a turn, and return samples a second."""
        self.crew.ask("open", **self._where, options=variant)
        ahead = 4 * variant.get("workers", 0)  # batches that wait in queues
        self._take(1 + ahead)
        num_batches, seconds = max(1, ahead), 0.0
        while seconds < self._turn_s / 4:
            num_batches *= 2 if seconds else 1
            (reply,) = self.crew.ask("take", num_batches=num_batches)
            seconds = reply["seconds"]
        self._num_batches = max(1, ahead, math.ceil(num_batches * self._turn_s / seconds))
        self._untimed = ahead or 1
        return reply["samples"] / seconds

    def _take(self, num_batches: int, untimed: int = 0) -> tuple[float, float]:
        (reply,) = self.crew.ask("take", num_batches=num_batches, untimed=untimed)
        return reply["samples"] / reply["seconds"], reply["samples"] / reply["cpu_s"]


def measure(work: str, plan: Plan, log: Log) -> list[dict[str, Any]]:
    """Return an entry for each competitor of each cell of a kind of work."""
    return [
        {"workers": workers, **entry}
        for workers in CELLS[work]
        for entry in _measure_cell(work, workers, plan, log)
    ]


def _variants(competitor: Competitor, workers: int | None) -> list[dict[str, Any]]:
    return [one for one in competitor.variants if workers in (None, one["workers"])]


def _measure_cell(work: str, workers: int | None, plan: Plan, log: Log) -> list[dict[str, Any]]:
    turns: dict[str, Turn] = {}
    failed: dict[str, str] = {}
    try:
        for competitor in COMPETITORS[work]:
            if not _variants(competitor, workers):
                continue  # the limit has one thread
            log(f"{work}, workers {workers}: {competitor.name}")
            try:
                turns[competitor.name] = Turn(competitor, work, workers, plan)
            except CompetitorError as error:
                failed[competitor.name] = str(error)
        for number in range(plan.rounds // 2 + 1 if workers else plan.rounds):
            for turn in list(turns.values())[:: 1 if number % 2 else -1]:
                try:
                    turn.take()
                except CompetitorError as error:
                    failed[turn.name] = str(error)
                    del turns[turn.name]
    finally:
        for turn in turns.values():
            turn.crew.stop()
    for name, error in failed.items():
        log(f"{name} failed: {error}")
    return [turn.result() for turn in turns.values()] + [
        {"competitor": name, "failed": error} for name, error in failed.items()
    ]
