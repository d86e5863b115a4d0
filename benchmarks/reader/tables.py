"""The results as tables, for a terminal and for a page of documentation."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.reader.competitors import COMPETITORS, OURS, REFERENCES
from benchmarks.reader.goals import Results, fastest, medians
from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; the first column names the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n"

    def show(self, console: Console) -> None:
        """Print the table."""
        table = RichTable(*self.columns, title=self.title, title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            table.add_row(*row, style="bold" if row[0] == OURS else None)
        console.print(table)


def tables(results: Results) -> list[Table]:
    """Return all tables that these results have rows for."""
    found = [_goals(results), *_speed(results), _variants(results), _cold(results)]
    found += [_stalls(results), _memory(results)]
    return [table for table in found if table.rows]


def _speed(results: Results) -> list[Table]:
    cells = [(e["ranks"], e["shape"]) for e in results.get("speed", [])]
    return [_speed_of(results, shape, ranks) for ranks, shape in dict.fromkeys(cells)]


def _speed_of(results: Results, shape: str, ranks: int) -> Table:
    entries = results["speed"]
    batches = sorted({e["batch"] for e in entries if (e["shape"], e["ranks"]) == (shape, ranks)})
    by_batch = {batch: medians(results, shape, batch, ranks) for batch in batches}
    names = [name for name in COMPETITORS if any(name in rates for rates in by_batch.values())]
    return Table(
        f"Samples/s, {shape} rows, {ranks} rank{'s' * (ranks > 1)}, warm page cache "
        "(in brackets: times the faster reference)",
        ["", *(f"batch {batch:,}" for batch in batches)],
        [[name, *(_rate(by_batch[batch], name) for batch in batches)] for name in names],
    )


def _rate(rates: dict[str, float], name: str) -> str:
    if name not in rates:
        return "failed"
    reference = fastest(rates, REFERENCES)
    return (
        f"{amount(rates[name])} ({rates[name] / reference:.2g})"
        if reference
        else amount(rates[name])
    )


def amount(number: float) -> str:
    """Return a number of three digits with its unit: 1.52 M, 83.1 k."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if number >= limit:
            return (
                f"{number / limit:.3g}{unit}"
                if number < 1e3 * limit
                else f"{number / limit:,.0f}{unit}"
            )
    return f"{number:.3g}"


def _variants(results: Results) -> Table:
    entries = [e for e in results.get("speed", []) if "variant" in e]
    chosen = Counter(
        (e["competitor"], ", ".join(f"{name}={value}" for name, value in e["variant"].items()))
        for e in entries
        if len(COMPETITORS[e["competitor"]].variants) > 1
    )
    rows = [[name, options, str(cells)] for (name, options), cells in sorted(chosen.items())]
    title = "Options that took part, the fastest of a trial in each cell"
    return Table(title, ["", "options", "cells"], rows)


def _cold(results: Results) -> Table:
    rows = [
        [e["competitor"], f"{e['median']:,.0f}" if "median" in e else "failed"]
        for e in results.get("cold", [])
    ]
    return Table("Cold page cache: MB/s, wide rows, batch 256, 1 rank", ["", "MB/s"], rows)


def _stalls(results: Results) -> Table:
    columns = {
        "wait": "wait_ms", "first of a window": "stall_median_ms", "longest": "stall_max_ms",
        "from batch to batch": "batch_ms", "ratio": "ratio_median", "largest": "ratio_max",
        "waiting": "waiting_share",
    }  # fmt: skip
    rows = [
        [f"{e['competitor']} ({e['step']})", *(f"{e[key]:.3g}" for key in columns.values())]
        for e in results.get("stalls", [])
    ]
    return Table("Waiting for a batch, ms, with steps of 5 ms", ["", *columns], rows)


def _memory(results: Results) -> Table:
    names = {
        "trained through, GB": "trained_gb", "windows": "windows", "before, MB": "before_mb",
        "first window": "first_mb", "last window": "last_mb", "most": "max_mb",
        "mapped files, most": "files_max_mb",
    }  # fmt: skip
    memory: dict[str, Any] = results.get("memory") or {}
    row = [OURS, *(f"{memory[key]:,.4g}" for key in names.values())] if memory else []
    return Table("Anonymous memory of a rank that trains", ["", *names], [row] if row else [])


def _goals(results: Results) -> Table:
    rows = [
        [
            goal["text"],
            f"{goal['value']:.3g}",
            f"{'at most' if goal['is_most'] else 'at least'} {goal['limit']:.3g}",
            "yes" if goal["is_met"] else "no",
        ]
        for goal in results.get("goals", [])
    ]
    return Table("Goals", ["", "measured", "wanted", "met"], rows)
