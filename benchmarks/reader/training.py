"""What a training sees of the reader: how long it waits at a window's end, and its memory."""

import shutil
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.reader.competitors import COMPETITORS, OURS, REFERENCES
from benchmarks.reader.crew import CompetitorError, Crew
from benchmarks.reader.formats import folder_of, home_of, warm
from benchmarks.reader.plan import Plan
from benchmarks.reader.rows import records
from benchmarks.reader.task import SHAPES

Log = Callable[[str], None]
SHAPE, BATCH = "wide", 256
STEPS = ("sleep", "compute")


def measure_stalls(plan: Plan, log: Log) -> list[dict[str, Any]]:
    """Return, by competitor and kind of step, the waits within windows and at their ends.

    Raises:
        CompetitorError: one cannot read.
    """
    results = []
    for name in (OURS, *REFERENCES):
        competitor = COMPETITORS[name]
        folder = folder_of(competitor, SHAPE, plan.shards[SHAPE], plan.cache)
        warm(folder)
        for step in STEPS:
            log(f"waits with a step of 5 ms ({step}): {name}")
            with Crew(competitor, plan.cache) as crew:
                options = competitor.variants[0]
                crew.ask("open", folder=str(folder), shape=SHAPE, batch=BATCH, options=options)
                (reply,) = crew.ask("trace", num_batches=plan.traced, step=step)
            results.append({"competitor": name, "step": step} | summarise(**reply))
    return results


def summarise(
    waits_s: list[float], periods_s: list[float], boundaries: list[int]
) -> dict[str, Any]:
    """Return medians and maxima in ms; the first batch, which opens the data, does not count.

    Args:
        waits_s: the wait for each batch.
        periods_s: from the taking of a batch to that of the next, the step included.
        boundaries: which batches are the first of a window.
    """
    at = set(boundaries)
    within = [i for i in range(1, len(waits_s)) if i not in at]
    wait = statistics.median(waits_s[i] for i in within)
    period = statistics.median(periods_s[i] for i in within)
    stalls = sorted(waits_s[i] for i in boundaries)
    return {
        "boundaries": len(boundaries),
        "wait_ms": 1e3 * wait,
        "batch_ms": 1e3 * period,
        "stall_median_ms": 1e3 * statistics.median(stalls),
        "stall_max_ms": 1e3 * stalls[-1],
        "ratio_median": statistics.median(periods_s[i] for i in boundaries) / period,
        "ratio_max": max(periods_s[i] for i in boundaries) / period,
        "waiting_share": sum(waits_s[1:]) / sum(periods_s[1:]),
    }


def measure_memory(plan: Plan, log: Log) -> dict[str, Any]:
    """Train through many gigabytes and return the anonymous memory, window by window.

    Raises:
        CompetitorError: the reader failed.
    """
    shape = SHAPES[SHAPE]
    shards = max(4, round(plan.gigabytes * 1e9 / (shape.rows_per_shard * shape.row_bytes)))
    log(f"memory: {shards} shards, {shards * shape.rows_per_shard * shape.row_bytes / 1e9:.1f} GB")
    is_kept = shards == plan.shards[SHAPE]  # the speed tables' own data
    _check_space(plan, 0 if is_kept else shards * shape.rows_per_shard * (shape.row_bytes + 16))
    try:
        folder = folder_of(COMPETITORS[OURS], SHAPE, shards, plan.cache)
        rows = sum(record["rows"]["train"] for record in records(folder))
        with Crew(COMPETITORS[OURS], plan.cache) as crew:
            crew.ask("open", folder=str(folder), shape=SHAPE, batch=BATCH, options={})
            (reply,) = crew.ask("train", num_batches=rows // BATCH)
    finally:
        if not is_kept:
            shutil.rmtree(home_of(SHAPE, shards, plan.cache), ignore_errors=True)
    return _memory(reply["samples"], rows * shape.row_bytes)


def _check_space(plan: Plan, needed: int) -> None:
    free = shutil.disk_usage(plan.cache).free
    if needed > free:
        raise CompetitorError(
            f"{plan.cache} has {free / 1e9:.0f} GB free and {needed / 1e9:.0f} GB are needed; "
            "choose fewer with --gigabytes or another disk with --cache"
        )


def _memory(samples: list[dict[str, int]], trained_bytes: int) -> dict[str, Any]:
    anonymous = [sample["RssAnon"] / 1e6 for sample in samples]
    before, windows = anonymous[0], anonymous[1:]
    return {
        "trained_gb": trained_bytes / 1e9,
        "windows": len(windows),
        "before_mb": before,
        "first_mb": windows[0],
        "last_mb": windows[-1],
        "max_mb": max(windows),
        "growth_mb": max(windows) - before,
        "files_max_mb": max(sample["RssFile"] for sample in samples) / 1e6,
    }
