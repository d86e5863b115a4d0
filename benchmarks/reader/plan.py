"""How much is measured: a quick look, or all of it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run measures.

    Attributes:
        cache: folder of environments, data and logs.
        shards: number of shards by shape.
        cells: (shape, batch, ranks) of the speed tables.
        rounds: turns of each competitor in each cell.
        turn_s: about how long a turn is.
        cold_rounds: turns with a cold page cache.
        cold_s: how long such a turn is at most.
        traced: batches of which the waiting time is taken.
        gigabytes: size of the data that the memory measurement trains through.
    """

    cache: Path
    shards: dict[str, int]
    cells: list[tuple[str, int, int]]
    rounds: int
    turn_s: float
    cold_rounds: int
    cold_s: float
    traced: int
    gigabytes: float


def quick(cache: Path) -> Plan:
    """Return a plan of a few minutes."""
    return Plan(
        cache=cache,
        shards={"wide": 10, "narrow": 10},
        cells=[("wide", 256, 1), ("narrow", 256, 1), ("wide", 256, 2)],
        rounds=3,
        turn_s=0.3,
        cold_rounds=1,
        cold_s=1.5,
        traced=800,
        gigabytes=1,
    )


def full(cache: Path) -> Plan:
    """Return the plan behind `docs/contributing/laboratory.md`."""
    cells = [
        (shape, batch, ranks)
        for ranks in (1, 2)
        for shape in ("wide", "narrow")
        for batch in (1, 32, 256, 4096)
    ]
    return Plan(
        cache=cache,
        shards={"wide": 25, "narrow": 50},
        cells=cells,
        rounds=5,
        turn_s=0.5,
        cold_rounds=5,
        cold_s=3,
        traced=2000,
        gigabytes=20,
    )
