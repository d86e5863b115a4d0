"""Photos with a cold page cache, and the wait for a batch at a window's end."""

import statistics
from typing import Any

from benchmarks.reader.competitors import Competitor
from benchmarks.reader.crew import Crew
from benchmarks.reader.formats import evict, warm
from benchmarks.reader.training import summarise
from benchmarks.samples.competitors import COMPETITORS, LIMIT, OURS
from benchmarks.samples.formats import WORKER, folder_of, plain_of
from benchmarks.samples.plan import Plan
from benchmarks.samples.speed import Log
from benchmarks.samples.task import BATCH, PHOTOS

WINDOW_BYTES = 16 << 20  # an eighth of the photos: data that are read while others are decoded
_SHARE = 0.6  # of an epoch that is read with a cold page cache


def measure_cold(plan: Plan, log: Log) -> list[dict[str, float]]:
    """Return for each round the photos a second of reading alone, of decoding alone, and of Shardline."""
    size = plan.sizes[PHOTOS]
    by_name = {competitor.name: competitor for competitor in COMPETITORS[PHOTOS]}
    folder = folder_of(by_name[OURS], PHOTOS, size, plan.cache)
    rounds = []
    for number in range(plan.cold_rounds):
        log(f"cold page cache, round {number + 1} of {plan.cold_rounds}")
        evict(folder)
        with Crew(by_name[LIMIT], plan.cache, worker=WORKER) as crew:
            (reply,) = crew.ask("read", folder=str(folder))
            read = size / reply["seconds"]
            _open(crew, by_name[LIMIT], plan)
            decode = _rate(crew, plan)
        with Crew(by_name[OURS], plan.cache, worker=WORKER) as crew:
            evict(folder)
            _open(crew, by_name[OURS], plan, window_bytes=WINDOW_BYTES)
            ours = _rate(crew, plan)
        rounds.append({"read": read, "decode": decode, "ours": ours})
    return rounds


def _open(crew: Crew, competitor: Competitor, plan: Plan, **options: Any) -> None:
    size = plan.sizes[PHOTOS]
    plain, folder = (
        plain_of(PHOTOS, size, plan.cache),
        folder_of(competitor, PHOTOS, size, plan.cache),
    )
    options = {**competitor.variants[0], **options}
    crew.ask("open", work=PHOTOS, folder=str(folder), plain=str(plain), options=options)


def _rate(crew: Crew, plan: Plan) -> float:
    """Return photos a second behind the first batch: opening does not count, as elsewhere."""
    num_batches = int(plan.sizes[PHOTOS] * _SHARE) // BATCH[PHOTOS]
    (reply,) = crew.ask("take", num_batches=num_batches, untimed=1)
    return reply["samples"] / reply["seconds"]


def measure_stalls(plan: Plan, log: Log) -> list[dict[str, Any]]:
    """Return the waits within windows and at their ends, by number of transforming threads."""
    ours = next(one for one in COMPETITORS[PHOTOS] if one.name == OURS)
    warm(folder_of(ours, PHOTOS, plan.sizes[PHOTOS], plan.cache))
    results = []
    for workers in (0, 1, 2):
        log(f"waits with {workers} threads")
        with Crew(ours, plan.cache, worker=WORKER) as crew:
            _open(crew, ours, plan, workers=workers, window_bytes=WINDOW_BYTES)
            (reply,) = crew.ask("trace", num_batches=plan.traced, step="sleep")
        results.append({"workers": workers} | summarise(**reply))
    return results


def cold_ratios(rounds: list[dict[str, float]]) -> tuple[float, float, float]:
    """Return the median, the least and the most of our rate over the slower of reading and decoding."""
    ratios = [one["ours"] / min(one["read"], one["decode"]) for one in rounds]
    return statistics.median(ratios), min(ratios), max(ratios)
