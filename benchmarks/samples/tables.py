"""The results as tables."""

import statistics

from benchmarks.reader.tables import Table, amount
from benchmarks.samples.competitors import LIMIT
from benchmarks.samples.goals import Results, cell, goals
from benchmarks.samples.speed import CELLS
from benchmarks.samples.task import BATCH, PHOTOS

_LIMITS = {"photos": "decoder alone", "tokens": "memory copy", "boxes": "memory copy"}


def tables(results: Results) -> list[Table]:
    """Return all tables that these results have rows for."""
    found = [_goals(results), *(_speed(results, work, n) for work, of in CELLS.items() for n in of)]
    found += [_cold(results), _stalls(results), _packing(results)]
    return [table for table in found if table.rows]


def _goals(results: Results) -> Table:
    rows = [
        [
            goal.text,
            f"{goal.value:.3g}",
            f"{goal.least:.3g} to {goal.most:.3g}",
            f"{'at most' if goal.is_most else 'at least'} {goal.limit:g}",
            "yes" if goal.is_met else "**no**",
        ]
        for goal in goals(results)
    ]
    return Table("Goals of samples", ["", "median", "rounds", "wanted", "met"], rows)


def _speed(results: Results, work: str, workers: int | None) -> Table:
    found, rows = cell(results, work, workers), []
    for name, entry in found.items():
        clock, cpu = entry["clock"], entry["cpu"]
        options = ", ".join(f"{key}={value}" for key, value in entry["variant"].items())
        rows.append(
            [
                _LIMITS[work] if name == LIMIT else name,
                amount(statistics.median(cpu)),
                f"{amount(min(cpu))} to {amount(max(cpu))}",
                amount(statistics.median(clock)),
                options or "-",
            ]
        )
    rows += [
        [entry["competitor"], "failed", "", "", ""]
        for entry in results.get(work, [])
        if "failed" in entry and entry["workers"] == workers
    ]
    title = f"{work.capitalize()}, batch {BATCH[work]}"
    if work == PHOTOS:
        title += f", {workers} workers"
    unit = {"photos": "photos", "tokens": "blocks of 1,024", "boxes": "images"}[work]
    columns = ["", f"{unit} per s of CPU time", "rounds", f"{unit}/s", "options"]
    return Table(title, columns, rows)


def _cold(results: Results) -> Table:
    found = results.get("cold") or []
    names = {"read": "reading alone", "decode": "decoder alone", "ours": "Shardline"}
    rows = [
        [name, amount(statistics.median(one[key] for one in found))]
        for key, name in names.items()
        if found
    ]
    return Table("Photos, cold page cache", ["", "photos/s"], rows)


def _stalls(results: Results) -> Table:
    columns = {
        "ends of windows": "boundaries", "wait": "wait_ms", "first of a window": "stall_median_ms",
        "longest": "stall_max_ms", "from batch to batch": "batch_ms", "ratio": "ratio_median",
        "largest": "ratio_max",
    }  # fmt: skip
    rows = [
        [f"{entry['workers']} threads", *(f"{entry[key]:.3g}" for key in columns.values())]
        for entry in results.get("stalls", [])
    ]
    title = "Waiting for a batch of photos, ms, with steps of 5 ms and windows of 16 MiB"
    return Table(title, ["", *columns], rows)


def _packing(results: Results) -> Table:
    rows = [
        [
            one["competitor"],
            f"{one['packs']:,}",
            f"{100 * one['waste']:.2f} %",
            f"{one['seconds']:.2f}",
        ]
        for one in results.get("packing") or []
    ]
    title = "Rows of log-normal lengths (median 245, at most 2,048) in packs of 2,048"
    return Table(title, ["", "packs", "waste", "seconds"], rows)
