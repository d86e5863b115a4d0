"""Measure the streaming reader: `python -m benchmarks.reader [--full]`, from the repository."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reader import cold, machine, plan, speed, training
from benchmarks.reader.competitors import COMPETITORS, Competitor
from benchmarks.reader.crew import REPOSITORY, CompetitorError
from benchmarks.reader.goals import evaluate_goals
from benchmarks.reader.tables import tables
from rich.console import Console

from shardline.core.files import write_json

PARTS = ("speed", "cold", "stalls", "memory")
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "contributing" / "laboratory.md"
MARKS = ("<!-- results -->", "<!-- end of results -->")


def main() -> int:
    arguments = _arguments()
    cache: Path = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    chosen = plan.full(cache) if arguments.full else plan.quick(cache)
    if arguments.gigabytes:
        chosen = dataclasses.replace(chosen, gigabytes=arguments.gigabytes)
    names = arguments.competitors or list(COMPETITORS)
    is_complete = arguments.full and names == list(COMPETITORS)
    out = (RESULTS if is_complete else cache / "results") / "reader.json"
    results = json.loads(out.read_text()) if arguments.parts and out.exists() else {}
    _measure(results, chosen, arguments.parts or PARTS, [COMPETITORS[name] for name in names])
    write_json(out, results)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in tables(results):
        table.show(console)
    console.print(f"Written to {out}")
    if is_complete:
        write_page(results)
    else:
        console.print("All of it, in about 20 minutes: python -m benchmarks.reader --full")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reader", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all cells, 5 rounds, 20 GB, the page")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="measure these; keep the others' results"
    )
    parser.add_argument("--competitors", nargs="+", choices=list(COMPETITORS), help="only these")
    parser.add_argument("--gigabytes", type=float, help="data of the memory measurement")
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / ".bench", help="environments and data (.bench)"
    )
    return parser.parse_args()


def _measure(
    results: dict[str, Any], chosen: plan.Plan, parts: Sequence[str], competitors: list[Competitor]
) -> None:
    start = time.monotonic()

    def log(text: str) -> None:
        print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)

    results["machine"] = machine.describe()
    measures: dict[str, Callable[[], Any]] = {
        "speed": lambda: speed.measure(competitors, chosen, log),
        "cold": lambda: cold.measure(competitors, _variants(results), chosen, log),
        "stalls": lambda: training.measure_stalls(chosen, log),
        "memory": lambda: training.measure_memory(chosen, log),
    }
    for part in parts:
        try:
            results[part] = measures[part]()
        except CompetitorError as error:
            log(f"{part} failed: {error}")
    results["goals"] = evaluate_goals(results)


def _variants(results: dict[str, Any]) -> dict[str, Any]:
    """Return the options that won in the cell that the cold measurement repeats."""
    cell = (cold.SHAPE, cold.BATCH, 1)
    return {
        entry["competitor"]: entry["variant"]
        for entry in results.get("speed", [])
        if (entry["shape"], entry["batch"], entry["ranks"]) == cell and "variant" in entry
    }


def write_page(results: dict[str, Any]) -> None:
    """Replace the text between the marks of `docs/contributing/laboratory.md` by these results."""
    body = [machine.sentence(results["machine"]), *(table.markdown() for table in tables(results))]
    replace_part("\n".join(body), MARKS)


def replace_part(body: str, marks: tuple[str, str]) -> None:
    """Replace the text between two marks of `docs/contributing/laboratory.md`."""
    before, _, rest = PAGE.read_text().partition(marks[0])
    after = rest.partition(marks[1])[2]
    PAGE.write_text(f"{before}{marks[0]}\n{body}{marks[1]}{after}")


if __name__ == "__main__":
    sys.exit(main())
