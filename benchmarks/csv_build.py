"""How fast a dataset is built from a CSV file, beside pyarrow's own reading of it plus writing.

Competitors take turns, so that a busy machine or disk slows all alike, each with as many cores:

- pyarrow: reads the file as float32 columns and a label, block by block, and writes an Arrow file, fsynced;
- ours: a job for each core, which checks each value, orders rows by split, summarises, digests, and writes shards,
  fsynced and renamed.

The goal is 0.7 of pyarrow's rate. `line breaks` is ours with `source.line_breaks`, `thousands` with numbers such as
`1,234.5` in quotes in one column of all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from shardline.data.build import build_shards
from shardline.data.sources.csv import Csv

FEATURES = 20
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SHARD_BYTES = 64_000_000
ME = Path(__file__)
NAMES = [f"x{i}" for i in range(FEATURES)]


def make_csv(path: Path, num_bytes: int) -> None:
    """Write rows of numbers with up to seven digits, a label, and a quoted number with thousands marks."""
    chance = np.random.default_rng(0)
    block = pa.table(
        {name: chance.normal(size=20_000).astype(np.float32) for name in NAMES}
        | {"big": [f"{n:,}" for n in chance.integers(0, 10**6, 20_000)]}
        | {"y": chance.integers(0, 2, 20_000)}
    )
    with path.open("wb") as file:
        pcsv.write_csv(block, file)
        while file.tell() < num_bytes:
            pcsv.write_csv(block, file, pcsv.WriteOptions(include_header=False))


def run_pyarrow(path: Path, folder: Path, cores: int) -> None:
    """Read and write in this process."""
    pa.set_cpu_count(cores)
    types = dict.fromkeys(NAMES, pa.float32()) | {"y": pa.int64()}
    read = pcsv.ReadOptions(block_size=8 * 2**20, use_threads=cores > 1)
    convert = pcsv.ConvertOptions(column_types=types, include_columns=[*types])
    batches = pcsv.open_csv(path, read, convert_options=convert)
    with (folder / "a.arrow").open("wb") as file:
        with pa.ipc.new_file(file, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def build(
    path: Path, folder: Path, shards: range, num_shards: int, options: dict[str, Any]
) -> None:
    """Write one job's shards."""
    features = [*NAMES, "big"] if "thousands" in options else NAMES
    source = Csv(
        files=[path], num_shards=num_shards, label="y", num_classes=2, features=features, **options
    )
    for _ in build_shards(source, shards, SPLITS, folder):
        pass


def run_ours(path: Path, folder: Path, cores: int, **options: Any) -> None:
    """Build with a process for each core."""
    num_shards = max(cores, round(path.stat().st_size / SHARD_BYTES))
    cuts = [num_shards * job // cores for job in range(cores + 1)]
    words = [
        [str(path), str(folder), str(first), str(last), str(num_shards), json.dumps(options)]
        for first, last in pairwise(cuts)
    ]
    jobs = [subprocess.Popen([sys.executable, str(ME), "job", *of]) for of in words]
    if any([job.wait() for job in jobs]):  # noqa: C419 - wait for all of them
        raise SystemExit("a job failed")


def measure(path: Path, cores: int, repeats: int) -> None:
    """Print the rate of each competitor, medians of the ratios of turns, and seconds of processors."""
    competitors: dict[str, Callable[[Path, Path, int], None]] = {
        "pyarrow": subprocess_pyarrow,
        "ours": run_ours,
        "line breaks": partial(run_ours, line_breaks=True),
        "thousands": partial(run_ours, thousands=","),
    }
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    processor: dict[str, list[float]] = {name: [] for name in competitors}
    path.read_bytes()  # into the page cache
    for _ in range(repeats):
        for name, run in competitors.items():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                begin, before = time.perf_counter(), os.times()
                run(path, Path(folder), cores)
                seconds[name].append(time.perf_counter() - begin)
                after = os.times()
                used = after.children_user - before.children_user
                processor[name].append(used + after.children_system - before.children_system)
    size = path.stat().st_size / 1e6
    for name, of in seconds.items():
        ratios = [a / b for a, b in zip(seconds["pyarrow"], of, strict=True)]
        print(
            f"{name:12} {size / statistics.median(of):7.0f} MB/s   {statistics.median(ratios):.2f} of pyarrow "
            f"({min(ratios):.2f} to {max(ratios):.2f}), processor {statistics.median(processor[name]):.1f} s",
            flush=True,
        )


def subprocess_pyarrow(path: Path, folder: Path, cores: int) -> None:
    """Run pyarrow in a process of its own, as the jobs are."""
    subprocess.run(
        [sys.executable, str(ME), "pyarrow", str(path), str(folder), str(cores)], check=True
    )


def main() -> None:
    """Measure, or be one of the processes."""
    match sys.argv[1:]:
        case ["job", path, folder, first, last, num_shards, options]:
            shards = range(int(first), int(last))
            build(Path(path), Path(folder), shards, int(num_shards), json.loads(options))
            return
        case ["pyarrow", path, folder, cores]:
            run_pyarrow(Path(path), Path(folder), int(cores))
            return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=2000, help="size of the file")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        make_csv(path, asked.mb * 10**6)
        measure(path, asked.cores, asked.repeats)


if __name__ == "__main__":
    main()
