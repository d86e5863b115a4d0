"""Speed of reading a preprocessed table, beside today's reader, in turn.

Three datasets of the same rows: `prepared` stores raw columns and preprocesses when it reads; `plain` stores the same
features as numbers, as a user writes them today; `numbers` stores the numbers alone. The plain readers' batches are
normalised as in a training, since preprocessed features are scaled already. The ratios of the medians are what counts.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.datamodule import Normalizer
from shardline.data.dataset import Dataset
from shardline.data.sources.from_files import text_id
from shardline.data.sources.prepared_columns import bits_of, stored_columns
from shardline.data.sources.source import Schema, Source, Table, combine_digests
from shardline.records.base import encode
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    PreparedCategory,
    PreparedNumber,
    Preprocessing,
)
from shardline_io.order.sampling import TrainOrder

SHARDS = 8


class Rows(Source):
    """Random rows, stored in one of three ways."""

    def __init__(
        self, way: str, rows: int, numbers: int, categories: int, levels: int, gaps: float
    ) -> None:
        super().__init__(num_shards=SHARDS)
        self.way, self.rows, self.numbers, self.levels, self.gaps = way, rows, numbers, levels, gaps
        self.plan = Preprocessing(
            numbers=[PreparedNumber(column=f"n{n}") for n in range(numbers)],
            categories=[PreparedCategory(column=f"c{n}") for n in range(categories)],
        )

    @property
    def schema(self) -> Schema:
        if self.way == "prepared":
            columns = stored_columns(self.plan, "float32") | {"labels": "int64"}
            return Schema(columns=columns, classes=("0", "1"), preprocessing=self.plan)
        width = self.numbers + len(self.plan.categories) * self.levels * (self.way == "plain")
        return Schema(feature_shape=(width,), classes=("0", "1"))

    @property
    def content_digest(self) -> str:
        return combine_digests([])

    def iter_tables(self, shard: int) -> Iterator[Table]:
        draw, rows = np.random.default_rng(shard), self.rows // SHARDS
        numbers = draw.standard_normal((rows, self.numbers), np.float32)
        is_gap = draw.random(numbers.shape) < self.gaps
        numbers[is_gap] = 0
        chosen = draw.integers(0, self.levels, (rows, len(self.plan.categories)))
        ids, labels = np.arange(rows) + shard * rows, draw.integers(0, 2, rows)
        texts = [f"level {n}" for n in range(self.levels)]
        codes = np.array([text_id(text) for text in texts])
        if self.way == "prepared":
            columns = {
                NUMBERS: numbers,
                GAPS: bits_of(is_gap),
                CODES: codes[chosen],
                "labels": labels,
            }
            if not self.plan.categories:
                del columns[CODES]
            names = dict(zip(codes.tolist(), texts, strict=True))
            yield Table(
                ids=ids, columns=columns, texts={one.column: names for one in self.plan.categories}
            )
            return
        parts = [numbers]
        if self.way == "plain":
            parts += [np.eye(self.levels, dtype=np.float32)[column] for column in chosen.T]
        yield Table(ids=ids, features=np.concatenate(parts, axis=1), labels=labels)


def epoch_s(dataset: Dataset, batch: int, epoch: int) -> tuple[float, float]:
    """Return the seconds of an epoch with normalisation, and the CPU seconds of all threads."""
    order = TrainOrder(
        dataset_id="d-000000000000", pieces=dataset.shards.pieces("train"), global_batch=batch, seed=0,
        window_rows=1 << 18,
    )  # fmt: skip
    normalize = Normalizer(dataset, "standard", torch.float32)
    stream = dataset.stream(order, num_epochs=1)
    begin, cpu = time.perf_counter(), time.process_time()
    for made in stream.batches(epoch):
        normalize.batch(made)
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shares = {"train": 1.0, "validation": 0.0, "test": 0.0}
    for numbers, categories, levels, gaps in (
        (20, 0, 0, 0.0), (20, 5, 20, 0.0), (20, 5, 20, 0.08), (100, 0, 0, 0.0), (100, 0, 0, 0.08),
    ):  # fmt: skip
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
            datasets = {}
            for way in ("prepared", "plain", "numbers"):
                folder = Path(name) / way
                folder.mkdir()
                source = Rows(way, arguments.rows, numbers, categories, levels, gaps)
                part = describe_part("d", build_shards(source, range(SHARDS), shares, folder), {})
                found = seal(
                    [part], dataset="d-000000000000", source=source, document={}, folder=folder
                )
                write_json(folder / "manifest.json", encode(found))
                datasets[way] = Dataset(folder / "manifest.json", folder, verify="off")
            seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in datasets}
            for turn in range(arguments.turns + 1):
                for way, dataset in datasets.items():
                    took = epoch_s(dataset, arguments.batch, turn)
                    seconds[way] += [took] if turn else []  # the first turn fills the page cache
        best = {way: min(took for took, _ in of) for way, of in seconds.items()}
        rates = ", ".join(f"{way} {arguments.rows / of / 1e6:.2f}" for way, of in best.items())
        ratios = [
            statistics.median(
                a[n] / b[n] for a, b in zip(seconds[way], seconds["prepared"], strict=True)
            )
            for way in ("plain", "numbers")
            for n in range(2)
        ]
        print(
            f"{numbers} numbers with {gaps:.0%} gaps, {categories} categories of {levels}: million rows/s: {rates}; "
            f"prepared reads at {ratios[0]:.2f} of plain, {ratios[2]:.2f} of numbers (by CPU time {ratios[1]:.2f}, "
            f"{ratios[3]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
