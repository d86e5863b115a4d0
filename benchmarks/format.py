"""Safetensors in our page-aligned layout beside Arrow IPC, as the file of a shard.

The features are one FixedSizeList column in Arrow. The two take turns:

- write: a shard of 10,000 rows of 1,000 float32 to disk, fsynced, the bytes
  ready in memory; then the same with BLAKE3 computed on the way;
- open: 1,000 shards mapped, up to an array of each one's features;
- gather: 256 random rows of all shards from the maps, as a batch.

docs/decisions/0005-shard-format.md holds the outcome.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import safetensors
from blake3 import blake3
from safetensors import safe_open

from shardline.data.shard_format import HEADER_BYTES, ShardLayout
from shardline.sources import Schema

FEATURES, BATCH, PIECE_BYTES = 1_000, 256, 1 << 20
COLUMNS = ("features", "labels", "ids")
SCHEMA = Schema(feature_shape=(FEATURES,), classes=("0", "1")).record()
RNG = np.random.default_rng(0)


class Digested:
    """A file that digests what is written to it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, blake3()

    def write(self, data: memoryview) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._digest.update(view[start : start + PIECE_BYTES])
            self._file.write(view[start : start + PIECE_BYTES])
        return len(view)

    def flush(self) -> None:
        pass


def columns_of(rows: int) -> dict[str, np.ndarray]:
    return {
        "features": RNG.standard_normal((rows, FEATURES), dtype=np.float32),
        "labels": RNG.integers(0, 2, rows),
        "ids": np.arange(rows),
    }


def write_safetensors(sink: IO[bytes] | Digested, columns: dict[str, np.ndarray]) -> None:
    layout = ShardLayout.of(SCHEMA, len(columns["ids"]))
    sink.write(layout.header(0))
    for name in COLUMNS:
        sink.write(columns[name].reshape(-1).view(np.uint8).data)


def write_arrow(sink: IO[bytes] | Digested, columns: dict[str, np.ndarray]) -> None:
    flat = pa.array(columns["features"].reshape(-1))
    arrays = [pa.FixedSizeListArray.from_arrays(flat, FEATURES)]
    arrays += [pa.array(columns[name]) for name in ("labels", "ids")]
    batch = pa.record_batch(arrays, names=list(COLUMNS))
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)


def open_safetensors(path: Path, rows: int) -> np.ndarray:
    """Map by the manifest alone, as the reader does: the header is not read."""
    layout = ShardLayout.of(SCHEMA, rows)
    shape = layout.shapes["features"]
    return np.memmap(path, dtype=np.float32, mode="r", offset=HEADER_BYTES, shape=shape)


def open_by_library(path: Path, rows: int) -> np.ndarray:
    """Open as any other program does, with the format's own library."""
    with safe_open(path, framework="np") as file:
        return file.get_slice("features")


def open_arrow(path: Path, rows: int) -> np.ndarray:
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    return batch.column(0).flatten().to_numpy().reshape(rows, FEATURES)


def gather(arrays: list[np.ndarray], shards: np.ndarray, rows: np.ndarray) -> np.ndarray:
    batch = np.empty((len(rows), FEATURES), dtype=np.float32)
    for place, (shard, row) in enumerate(zip(shards, rows, strict=True)):
        batch[place] = arrays[shard][row]
    return batch


def measure(rounds: int, competitors: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each, all of them taking turns."""
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


WRITERS = {"safetensors, aligned": write_safetensors, "Arrow IPC": write_arrow}


def measure_writing(folder: Path, rounds: int, rows: int) -> None:
    columns = columns_of(rows)
    size = ShardLayout.of(SCHEMA, rows).bytes

    def write(name: str, digest: bool) -> None:
        with (folder / name).open("wb", buffering=0) as file:
            WRITERS[name](Digested(file) if digest else file, columns)
            os.fsync(file.fileno())

    for digest, title in ((False, "write"), (True, "write with BLAKE3")):
        runs = {name: lambda n=name, d=digest: write(n, d) for name in WRITERS}
        show(title, {n: f"{size / 1e9 / s:.3f} GB/s" for n, s in measure(rounds, runs).items()})


def measure_reading(folder: Path, rounds: int, num_shards: int, rows: int) -> None:
    paths = {name: [folder / f"{name}-{k}" for k in range(num_shards)] for name in WRITERS}
    for shard in range(num_shards):
        columns = columns_of(rows)
        for name, writer in WRITERS.items():
            with paths[name][shard].open("wb", buffering=0) as file:
                writer(file, columns)
    ours, theirs = paths["safetensors, aligned"], paths["Arrow IPC"]

    def open_all(
        opener: Callable[[Path, int], np.ndarray], files: Iterable[Path]
    ) -> list[np.ndarray]:
        return [opener(path, rows) for path in files]

    opened = measure(
        rounds,
        {
            "safetensors, aligned": lambda: open_all(open_safetensors, ours),
            "safetensors by its library": lambda: open_all(open_by_library, ours),
            "Arrow IPC": lambda: open_all(open_arrow, theirs),
        },
    )
    show(f"open {num_shards} shards", {n: f"{s * 1e3:.0f} ms" for n, s in opened.items()})
    maps = {
        "safetensors, aligned": open_all(open_safetensors, ours),
        "Arrow IPC": open_all(open_arrow, theirs),
    }
    plain = {name: [np.asarray(array) for array in arrays] for name, arrays in maps.items()}
    where = (
        RNG.integers(0, num_shards, (rounds * 20, BATCH)),
        RNG.integers(0, rows, (rounds * 20, BATCH)),
    )
    batches = {name: iter(zip(*where, strict=True)) for name in plain}
    gathered = measure(
        rounds * 20,
        {name: lambda n=name: gather(plain[n], *next(batches[n])) for name in plain},
    )
    show(f"gather {BATCH} rows", {n: f"{s * 1e6:.0f} us" for n, s in gathered.items()})


def show(title: str, figures: dict[str, str]) -> None:
    print(f"{title}:")
    for name, figure in figures.items():
        print(f"  {name:28} {figure:>12}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shards", type=int, default=1000, help="shards that are opened")
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="folder on the disk to measure"
    )
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, safetensors {safetensors.__version__}, Arrow {pa.__version__}"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_writing(Path(folder), options.rounds, rows=10_000)
        measure_reading(Path(folder), options.rounds, options.shards, rows=100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
