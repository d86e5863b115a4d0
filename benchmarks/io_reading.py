"""`shardline_io`'s batches with the next window read ahead, beside the same without: seconds of an epoch, in turn.

A step computes for a given time outside the interpreter's lock, as a training does. The files' pages are dropped
before each epoch, so that the disk is read; the ratio of the medians is what counts.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from shardline.data.build import build_shards, describe_part
from shardline.data.sources.synthetic import Synthetic
from shardline.records.base import encode
from shardline_io import streams
from shardline_io.order.pieces import split_pieces
from shardline_io.order.sampling import TrainOrder
from shardline_io.shards import Shards

FEATURES, WINDOWS = 1000, 8


def one_by_one(keys: Iterable[Any], read: Callable[[Any], Any]) -> Iterator[Any]:
    """Take the place of `streams.read_ahead`."""
    return map(read, keys)


def drop_pages(folder: Path) -> None:
    """Have the next reader of a folder's files read the disk."""
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def epoch_s(stream: streams.RowStream, epoch: int, step_s: float) -> tuple[float, float]:
    """Return the seconds from an epoch's first batch to its end, and the longest wait for a batch."""
    reading = stream.batches([(epoch, 0)])
    next(reading)
    begin, longest, last = time.perf_counter(), 0.0, time.perf_counter()
    for _ in reading:
        longest = max(longest, time.perf_counter() - last)
        time.sleep(step_s)
        last = time.perf_counter()
    return time.perf_counter() - begin, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=160_000, help="of 4 KB")
    parser.add_argument("--step-ms", type=float, default=3.0, help="of computing, for 500 rows")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    ways = {"read ahead": streams.read_ahead, "one by one": one_by_one}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        source = Synthetic(
            num_shards=WINDOWS, rows_per_shard=arguments.rows // WINDOWS, features=FEATURES
        )
        shares = {"train": 1.0, "validation": 0.0, "test": 0.0}
        built = build_shards(source, range(WINDOWS), shares, folder)
        part = describe_part("d", list(built), {})
        shards = encode(part)["shards"]
        os.sync()
        order = TrainOrder(
            dataset_id="d-000000000000",
            pieces=split_pieces([shard.rows for shard in part.shards], "train"),
            global_batch=500,
            seed=0,
            window_rows=arguments.rows // WINDOWS,
        )
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(arguments.turns):
            for way, reader in ways.items():
                streams.read_ahead = reader
                drop_pages(folder)
                stream = streams.RowStream(Shards({"shards": shards}, folder), {}, order)
                found[way].append(epoch_s(stream, turn, arguments.step_ms / 1000))
    medians = {}
    print(
        "| windows are read | epoch, median | longest wait for a batch, median |\n| --- | --- | --- |"
    )
    for way, of in found.items():
        medians[way], wait = (statistics.median(column) for column in zip(*of, strict=True))
        print(f"| {way} | {medians[way]:.2f} s | {1000 * wait:.0f} ms |")
    ratios = [b[0] / a[0] for a, b in zip(found["read ahead"], found["one by one"], strict=True)]
    print(
        f"one by one takes {statistics.median(ratios):.2f} times as long ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
