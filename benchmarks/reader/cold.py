"""Megabytes a second when the page cache holds nothing of the files, wide rows, batch 256."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.reader.competitors import LIMITS, Competitor
from benchmarks.reader.crew import CompetitorError, Crew
from benchmarks.reader.formats import evict, folder_of
from benchmarks.reader.plan import Plan
from benchmarks.reader.rows import records
from benchmarks.reader.task import SHAPES

SHAPE, BATCH = "wide", 256


def measure(
    competitors: Iterable[Competitor],
    variants: Mapping[str, dict[str, Any]],
    plan: Plan,
    log: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return an entry for each competitor, with the median of its rounds.

    Each turn is a fresh process, since pages that one has mapped stay in memory.
    It reads one epoch at most, from the opening of the data on.

    Args:
        variants: options by the competitor's name, where not the first is taken.
    """
    named = {c.name: c for c in competitors if c.name != LIMITS[0]}
    rates: dict[str, list[float]] = {name: [] for name in named}
    failed: dict[str, str] = {}
    for number in range(plan.cold_rounds):
        log(f"cold page cache, round {number + 1} of {plan.cold_rounds}")
        for name in (name for name in named if name not in failed):
            options = variants.get(name, named[name].variants[0])
            try:
                rates[name].append(_turn(named[name], options, plan))
            except CompetitorError as error:
                log(f"{name} failed: {error}")
                failed[name] = str(error)
    return [
        {"competitor": name, "failed": failed[name]}
        if name in failed
        else {
            "competitor": name,
            "median": statistics.median(rates[name]),
            "rates": [round(rate, 1) for rate in rates[name]],
        }
        for name in named
    ]


def _turn(competitor: Competitor, options: dict[str, Any], plan: Plan) -> float:
    folder = folder_of(competitor, SHAPE, plan.shards[SHAPE], plan.cache)
    total = sum(sum(r["rows"].values()) for r in records(folder.parent / "shardline"))
    with Crew(competitor, plan.cache) as crew:
        crew.ask("open", folder=str(folder), shape=SHAPE, batch=BATCH, options=options)
        evict(folder)
        (reply,) = crew.ask("take_for", seconds=plan.cold_s, max_rows=int(total * 0.9))
    return reply["rows"] * SHAPES[SHAPE].row_bytes / reply["seconds"] / 1e6
