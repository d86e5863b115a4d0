"""Throughput beside bare loops: `python -m benchmarks.throughput`, from the repository.

Training steps of the shipped models beside the same models in a loop without a framework whose data lie in
memory; evaluations of a million rows beside a loop over the same mapped files; and the memory of evaluations.
Both sides take turns, so that a busy machine slows both alike. The exit code is 1 where a goal is missed.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.reader import machine
from benchmarks.throughput import evaluation
from benchmarks.throughput.training import compare
from benchmarks.throughput.turns import ratios
from benchmarks.throughput.works import WORKS

STEP_SHARE, EVALUATION_SHARE, GROWTH = 0.97, 0.8, 1.05
PARTS = ("training", "evaluation", "memory")
FEATURES, HIDDEN = 1000, (256, 64)
MANY = 10  # times as many rows


def main() -> int:
    arguments = _arguments()
    print(machine.sentence({**machine.describe(), "peers": {}}))
    print(f"Load {os.getloadavg()[0]:.1f} as it began, {arguments.rounds} rounds, one thread.\n")
    parts = {"training": _training, "evaluation": _evaluation, "memory": _memory}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        met = [parts[name](Path(folder), arguments) for name in arguments.parts]
    return 0 if all(met) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of an evaluation (1,000,000)")
    parser.add_argument(
        "--folder", type=Path, help="for the data, 4 GB; a folder for temporary files"
    )
    return parser.parse_args()  # fmt: skip


def _table(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}")


def _row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _shares(ours: list[float], bare: list[float]) -> str:
    shares = ratios(ours, bare)
    return f"{median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"


def _training(folder: Path, arguments: argparse.Namespace) -> bool:
    _table("step", "bare loop", "Shardline", "bare step", "share by CPU time", "by the clock")
    shares = []
    for name in arguments.models:
        found = compare(name, folder, arguments.rounds, threads=1)
        work, turns = found.work, (found.bare, found.ours)
        counted = work.batch * work.samples * work.steps
        speeds = [counted / median(turn.seconds for turn in of) for of in turns]
        step_s = median(turn.seconds for turn in found.bare) / work.steps
        clock, cpu = (
            ([turn[which] for turn in found.ours], [turn[which] for turn in found.bare])
            for which in (0, 1)
        )
        rates = [f"{speed:,.4g} {work.sample}/s" for speed in speeds]
        _row(name, *rates, f"{1e3 * step_s:.0f} ms", _shares(*cpu), _shares(*clock))
        shares.append(median(ratios(*cpu)))
    print(f"\nGoal: {STEP_SHARE} of the bare loop's speed.\n")
    return min(shares) >= STEP_SHARE


def _evaluation(folder: Path, arguments: argparse.Namespace) -> bool:
    place = folder / "wide"
    evaluation.prepare(place, arguments.rows, FEATURES)
    _table(
        "hidden units", "bare loop", "Shardline", "first time", "share by CPU time", "by the clock"
    )
    shares = []
    for hidden in HIDDEN:
        found = evaluation.measured("speed", place, hidden, arguments.rounds)
        clock, cpu = (
            ([turn[which] for turn in found["ours"]], [turn[which] for turn in found["bare"]])
            for which in (0, 1)
        )
        seconds = [f"{median(of):.2f} s" for of in (clock[1], clock[0], [found["first"][0]])]
        _row(f"{hidden:,}", *seconds, _shares(*cpu), _shares(*clock))
        shares.append(median(ratios(*cpu)))
    print(f"\n{arguments.rows:,} rows of {FEATURES:,} float32. Goal: {EVALUATION_SHARE}.\n")
    return min(shares) >= EVALUATION_SHARE


def _memory(folder: Path, arguments: argparse.Namespace) -> bool:
    _table("rows", "before, MB", "most, MB", "added, MB", "seconds")
    added = []
    for rows in (arguments.rows, MANY * arguments.rows):
        place = folder / f"narrow-{rows}"
        evaluation.prepare(place, rows, features=4)
        found = evaluation.measured("memory", place, 16)
        added.append(found["peak"])
        before, most = found["before"] / 1e6, found["peak"] / 1e6
        cells = (f"{before:.0f}", f"{most:.0f}", f"{most - before:.0f}", f"{found['seconds']:.1f}")
        _row(f"{found['rows']:,}", *cells)
    print(f"\nAnonymous memory. Goal: at most {GROWTH} times as much for {MANY} times the rows.\n")
    return added[1] <= GROWTH * added[0]


if __name__ == "__main__":
    sys.exit(main())
