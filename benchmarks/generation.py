"""How fast synthetic shards are written, beside the disk itself and a design that pickles.

Four competitors take turns, so that a busy machine or disk slows all alike,
each writing the same rows (10,000 of 1,000 float32 features a shard):

- disk: the same bytes, already in memory, written one after another and fsynced;
- reference: one pickled dict of `numpy.random.randn` features per partition;
- ours, with 1 and with 2 processes: generated, checked, ordered by split,
  summarised, digested, written, fsynced and renamed.

The goal is half the disk's rate or five times the reference's, whichever is
lower. `ours without digest` is a control: it measures the cost of BLAKE3.
"""

import argparse
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shardline.data import shard_format as shardfile
from shardline.data.build import build_shards
from shardline.data.sources.synthetic import Synthetic

ROWS, FEATURES = 10_000, 1_000
SHARD_BYTES = ROWS * FEATURES * 4
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
ME = Path(__file__)


@cache
def prepared() -> memoryview:
    """Return a shard's worth of bytes; not zeros, which a file system may store as a hole."""
    return memoryview(np.random.default_rng(0).bytes(SHARD_BYTES))


def write_disk(folder: Path, num_shards: int) -> None:
    """Write prepared bytes, as `dd conv=fsync` does."""
    view = prepared()
    for shard in range(num_shards):
        with (folder / f"{shard}.bin").open("wb", buffering=0) as file:
            for start in range(0, SHARD_BYTES, 1 << 20):
                file.write(view[start : start + (1 << 20)])
            os.fsync(file.fileno())


def write_reference(folder: Path, num_shards: int) -> None:
    """Write partitions as a design without shards does; it does not fsync."""
    for shard in range(num_shards):
        features = np.random.randn(ROWS, FEATURES).astype(np.float32)
        rows = {"features": features, "labels": np.random.randint(0, 2, ROWS)}
        with (folder / f"{shard}.pkl").open("wb") as file:
            pickle.dump(rows, file)


class NoDigest:
    """Stands in for BLAKE3 in the control."""

    def update(self, data: object) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


def write_ours(folder: Path, num_shards: int, part: int = 0) -> None:
    """Write one part's shards, as a `build_shards` job does."""
    source = Synthetic(num_shards=1000, rows_per_shard=ROWS, features=FEATURES)
    shards = range(part * num_shards, (part + 1) * num_shards)
    for _ in build_shards(source, shards, SPLITS, folder):
        pass


def write_without_digest(folder: Path, num_shards: int, part: int = 0) -> None:
    shardfile.blake3 = NoDigest  # type: ignore[assignment,misc]
    write_ours(folder, num_shards, part)


WRITERS: dict[str, Callable[..., None]] = {
    "disk": write_disk,
    "reference": write_reference,
    "ours": write_ours,
    "ours without digest": write_without_digest,
}
COMPETITORS = {
    "disk": ("disk", 1),
    "reference": ("reference", 1),
    "ours, 1 job": ("ours", 1),
    "ours, 2 jobs": ("ours", 2),
    "ours without digest, 2 jobs": ("ours without digest", 2),
}


def rate(writer: str, processes: int, num_shards: int, parent: Path) -> tuple[float, float]:
    """Return GB/s over all processes, and CPU seconds per GB; start and imports do not count."""
    each = num_shards // processes
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        started = [
            subprocess.Popen(
                [sys.executable, str(ME), "--writer", writer, "--part", str(part),
                 "--shards", str(each), "--folder", folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for part in range(processes)
        ]  # fmt: skip
        for process in started:
            process.stdout.readline()  # it has imported all it needs
        start = time.perf_counter()
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        used = [process.stdout.readline() for process in started]
        seconds = time.perf_counter() - start
        codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(f"{writer} failed")
    size = each * processes * SHARD_BYTES / 1e9
    return size / seconds, sum(map(float, used)) / size


def work(options: argparse.Namespace) -> None:
    """Run one of the processes: report that it is ready, wait for the start, write, print the CPU seconds."""
    extra: dict[str, Any] = {"part": options.part} if options.writer.startswith("ours") else {}
    prepared()
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    WRITERS[options.writer](options.folder, options.shards, **extra)
    print(time.process_time() - before, flush=True)


def environment() -> str:
    """Return what the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    sha = any("sha_ni" in line for line in lines)
    return (
        f"{model}, {os.cpu_count()} cores, SHA instructions: {'yes' if sha else 'no'}; "
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.system()} {platform.release()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=48, help="shards that each competitor writes")
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="folder on the disk to measure"
    )
    parser.add_argument("--writer", choices=WRITERS, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        work(options)
        return 0
    print(environment())
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in COMPETITORS}
    for _ in range(options.rounds):
        for name, (writer, processes) in COMPETITORS.items():
            rates[name].append(rate(writer, processes, options.shards, options.folder))
    return report(rates, options)


def report(rates: dict[str, list[tuple[float, float]]], options: argparse.Namespace) -> int:
    """Print medians and ratios; the exit code is 0 if the goal is met."""
    print(f"median of {options.rounds} rounds of {options.shards} shards (lowest to highest):")
    medians = {}
    for name, values in rates.items():
        speeds, costs = zip(*values, strict=True)
        medians[name] = statistics.median(speeds)
        print(
            f"  {name:28} {medians[name]:6.3f} GB/s  ({min(speeds):.3f} to {max(speeds):.3f})"
            f"  {statistics.median(costs):5.2f} CPU s/GB"
        )
    goal = min(0.5 * medians["disk"], 5 * medians["reference"])
    best = max(medians["ours, 1 job"], medians["ours, 2 jobs"])
    print(
        f"ours / disk {best / medians['disk']:.2f}, ours / reference {best / medians['reference']:.1f}"
    )
    print(
        f"goal: {goal:.3f} GB/s, half the disk or five times the reference; reached {best / goal:.2f} of it"
    )
    return int(best < goal)


if __name__ == "__main__":
    sys.exit(main())
