"""A torch dataset of images: Shardline's reading and building beside the dataset's own DataLoader.

Photos are made: smooth noise, 500 x 375 pixels, about 40 KB as JPEG. The dataset opens and decodes a file
for each row, as `ImageFolder` of torchvision does. Competitors take turns, with as many processes each:

- loader: `DataLoader` of torch with `num_workers`, whose batches are tensors uint8;
- read: `PythonSource` in a job, which also reads some rows again;
- build: the same, with shards written, digested and summed up.

Rows per second count from the first batch or block, since processes take seconds to start. So does the time of
processors, of this process and of those that it started. It bounds the rate that a number of cores allows.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from shardline.config.resolved import PythonObject
from shardline.data.build import build_shards
from shardline.data.python.source import PythonSource

HEIGHT, WIDTH, SHARDS = 375, 500, 8
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


class Photos(Dataset):
    """Files of a folder as images of Pillow, or through a transform."""

    def __init__(self, folder: str, transform: Any = None) -> None:
        self.paths, self.transform = sorted(Path(folder).glob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        with Image.open(self.paths[row]) as image:
            image = image.convert("RGB")
        return (self.transform(image) if self.transform else image), row % 10


def tensor(image: Image.Image) -> torch.Tensor:
    """Return the pixels, as torchvision's `pil_to_tensor` does."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def make(folder: Path, number: int) -> None:
    """Write photos."""
    rng = np.random.default_rng(0)
    for row in range(number):
        small = rng.integers(0, 255, (HEIGHT // 12, WIDTH // 12, 3), np.uint8)
        image = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        image.save(folder / f"{row:06d}.jpg", quality=90)


def loader(folder: Path, workers: int) -> Iterator[int]:
    """Yield the number of rows of each batch of the dataset's own loader."""
    dataset = Photos(str(folder), tensor)
    for images, _ in DataLoader(dataset, batch_size=16, num_workers=workers):
        yield len(images)


def source(folder: Path, workers: int) -> PythonSource:
    """Return the dataset as a source."""
    given = PythonObject(path="benchmarks.python_source:Photos", options={"folder": str(folder)})
    return PythonSource(given, num_shards=SHARDS, num_classes=10, workers=workers)


def read(folder: Path, workers: int) -> Iterator[int]:
    """Yield the number of rows of each block of the source."""
    found = source(folder, workers)
    with tempfile.TemporaryDirectory() as out, found.job("read", range(SHARDS), Path(out)):
        for shard in range(SHARDS):
            for table in found.iter_tables(shard):
                yield len(table.ids)


def build(folder: Path, workers: int) -> Iterator[int]:
    """Yield the number of rows of each shard that is written."""
    found = source(folder, workers)
    with tempfile.TemporaryDirectory() as out, found.job("build", range(SHARDS), Path(out)):
        for record, _ in build_shards(found, range(SHARDS), SHARES, Path(out)):
            yield sum(record.rows.values())


def now() -> tuple[float, float]:
    """Return the time, and the seconds of processors of this process and of those that it started."""
    this = psutil.Process()
    times = [one.cpu_times() for one in (this, *this.children(recursive=True))]
    return time.perf_counter(), sum(of.user + of.system for of in times)


def rate(numbers: Iterator[int]) -> tuple[float, float]:
    """Return rows per second after the first, and milliseconds of processors per row."""
    next(numbers)
    begin, rows, end = now(), 0, (0.0, 0.0)
    for number in numbers:
        rows, end = rows + number, now()
    seconds, processors = (after - before for before, after in zip(begin, end, strict=True))
    return rows / seconds, processors / rows * 1e3


def main() -> None:
    """Print rows per second, and each competitor's share of the loader's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"{platform.machine()}, torch {torch.__version__}, {asked.images} images")
    found: dict[str, list[tuple[float, float]]] = {"loader": [], "read": [], "build": []}
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), asked.images)
        for _ in range(asked.rounds):
            for name, run in (("loader", loader), ("read", read), ("build", build)):
                found[name].append(rate(run(Path(place), asked.workers)))
    for name, turns in found.items():
        shares = [one / of for (one, _), (of, _) in zip(turns, found["loader"], strict=True)]
        rows_per_s, processor_ms = (statistics.median(of) for of in zip(*turns, strict=True))
        print(
            f"{name:7} {rows_per_s:8.0f} rows/s, {statistics.median(shares):.2f} of the loader, "
            f"{processor_ms:.2f} ms of processors per row"
        )


if __name__ == "__main__":
    main()
