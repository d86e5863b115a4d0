"""Measure how samples become batches: `python -m benchmarks.samples [--full]`, from the repository."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.reader import machine
from benchmarks.reader.__main__ import replace_part
from benchmarks.reader.crew import REPOSITORY, CompetitorError
from benchmarks.samples import packing, plan, speed, training
from benchmarks.samples.tables import tables
from rich.console import Console

from shardline.core.files import write_json

PARTS = (*speed.CELLS, "cold", "stalls", "packing")
RESULTS = REPOSITORY / "benchmarks" / "results"
MARKS = ("<!-- samples -->", "<!-- end of samples -->")


def main() -> int:
    arguments = _arguments()
    cache: Path = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    chosen = plan.full(cache) if arguments.full else plan.quick(cache)
    out = (RESULTS if arguments.full else cache / "results") / "samples.json"
    results = json.loads(out.read_text()) if arguments.parts and out.exists() else {}
    start = time.monotonic()

    def log(text: str) -> None:
        print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)

    results["machine"] = machine.describe(("simplejpeg", "pillow"), ("grain",))
    measures: dict[str, Callable[[], Any]] = {
        **{work: partial(speed.measure, work, chosen, log) for work in speed.CELLS},
        "cold": lambda: training.measure_cold(chosen, log),
        "stalls": lambda: training.measure_stalls(chosen, log),
        "packing": lambda: packing.measure(chosen),
    }
    for part in arguments.parts or PARTS:
        try:
            results[part] = measures[part]()
        except CompetitorError as error:
            log(f"{part} failed: {error}")
        write_json(out, results)
    console = Console(width=None if sys.stdout.isatty() else 150)
    for table in tables(results):
        table.show(console)
    console.print(f"Written to {out}")
    if arguments.full:
        body = [machine.sentence(results["machine"]), *(one.markdown() for one in tables(results))]
        replace_part("\n".join(body), MARKS)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samples", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more data and rounds, and the page")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="measure these; keep the others' results"
    )
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / ".bench", help="environments and data (.bench)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
