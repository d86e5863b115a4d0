"""How much is measured: a look in seconds, or all of it."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.samples.task import BOXES, PHOTOS, TOKENS


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run measures.

    Attributes:
        cache: folder of environments, data and logs.
        sizes: photos, tokens and images with boxes.
        rounds: turns of each competitor.
        turn_s: about how long a turn is.
        cold_rounds: turns with a cold page cache.
        traced: batches of which the waiting time is taken.
        rows: rows that are packed.
    """

    cache: Path
    sizes: dict[str, int]
    rounds: int
    turn_s: float
    cold_rounds: int
    traced: int
    rows: int


def quick(cache: Path) -> Plan:
    """Return a plan of a minute, once environments and data are there."""
    return Plan(
        cache=cache,
        sizes={PHOTOS: 320, TOKENS: 4_000_000, BOXES: 10_000},
        rounds=2,
        turn_s=0.2,
        cold_rounds=1,
        traced=40,
        rows=2_000,
    )


def full(cache: Path) -> Plan:
    """Return the plan behind `docs/contributing/laboratory.md`."""
    return Plan(
        cache=cache,
        sizes={PHOTOS: 1_200, TOKENS: 40_000_000, BOXES: 100_000},
        rounds=7,
        turn_s=0.5,
        cold_rounds=5,
        traced=150,
        rows=50_000,
    )
