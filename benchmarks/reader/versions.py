"""Two versions of Shardline's reader in turn: `python -m benchmarks.reader.versions CHECKOUT`."""

import argparse
import statistics
from pathlib import Path

from benchmarks.reader.competitors import COMPETITORS, OURS
from benchmarks.reader.crew import REPOSITORY, Crew
from benchmarks.reader.data import verify
from benchmarks.reader.formats import folder_of, warm
from benchmarks.reader.speed import Turn

# shape, shards, batch, ranks; the shards of all but the third are several windows
CELLS = [
    ("wide", 25, 256, 1),
    ("narrow", 1000, 256, 1),
    ("narrow", 50, 256, 1),
    ("wide", 25, 4096, 1),
    ("wide", 25, 256, 2),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="the other version's working tree")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn-s", type=float, default=1.0)
    parser.add_argument("--cache", type=Path, default=REPOSITORY / ".bench")
    arguments = parser.parse_args()
    print(
        "| rows | other, samples/s | this, samples/s | this / other, median of pairs | of CPU time |"
    )
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for cell in CELLS:
        print(_measure(*cell, arguments), flush=True)


def _measure(shape: str, shards: int, batch: int, ranks: int, arguments: argparse.Namespace) -> str:
    cache, competitor = arguments.cache.resolve(), COMPETITORS[OURS]
    folder = folder_of(competitor, shape, shards, cache)
    warm(folder)
    verify(folder)
    crews = [Crew(competitor, cache, ranks, checkout) for checkout in (arguments.checkout, None)]
    try:
        turns = [Turn(crew, folder, shape, batch, arguments.turn_s) for crew in crews]
        used = [[crew.cpu_seconds()] for crew in crews]
        pairs = list(zip(turns, crews, used, strict=True))
        for number in range(arguments.rounds):
            for turn, crew, seconds in pairs if number % 2 else reversed(pairs):
                turn.take()
                seconds.append(crew.cpu_seconds())
    finally:
        for crew in crews:
            crew.stop()
    other, this = (turn.rates for turn in turns)
    ratio = statistics.median(b / a for a, b in zip(other, this, strict=True))
    spent = [
        (last - first) / turn.rows for (first, *_, last), turn in zip(used, turns, strict=True)
    ]
    speeds = " | ".join(f"{statistics.median(rates):,.0f}" for rates in (other, this))
    what = f"{shape}, {shards} shards, batch {batch}, {ranks} rank{'s' * (ranks > 1)}"
    return f"| {what} | {speeds} | {ratio:.2f} | {spent[0] / spent[1]:.2f} |"


if __name__ == "__main__":
    main()
