"""The data of each kind of work, made once, as plain files and as a sealed dataset of Shardline."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.reader.data import write_dataset
from benchmarks.samples.task import (
    BOXES,
    NUM_CLASSES,
    PHOTOS,
    TOKENS,
    boxes_of,
    photo_files,
    tokens_of,
)

from shardline.sources import Ragged, Schema, Source, Table

DIFFERENT_PHOTOS = (
    200  # noise is slow to make: the others are copies of these, in files of their own
)
MOST_BOXES = 50
SHARD_BYTES = 16 << 20


def make_plain(work: str, size: int, folder: Path) -> None:
    """Write so many photos, tokens, or images' boxes; the same each time."""
    generator = np.random.default_rng(21)
    if work == PHOTOS:
        with ProcessPoolExecutor() as processes:
            contents = list(processes.map(_photo, range(min(size, DIFFERENT_PHOTOS))))
        for number, content in zip(range(size), itertools.cycle(contents), strict=False):
            (folder / f"{number:05d}.jpg").write_bytes(content)
    elif work == TOKENS:
        tokens = (generator.zipf(1.2, size) % 50_257).astype(np.int32)
        np.save(folder / "tokens.npy", tokens)
        tokens.astype(np.uint16).tofile(folder / "tokens.bin")  # as nanoGPT has them
        lengths = np.maximum(1, generator.lognormal(6, 1, size // 100).astype(np.int64))
        ends = np.cumsum(lengths)
        np.save(folder / "documents.npy", np.concatenate([[0], ends[ends < size], [size]]))
    else:
        counts = generator.integers(0, MOST_BOXES + 1, size)
        np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]))
        np.save(folder / "boxes.npy", generator.random((counts.sum(), 4), np.float32))


def _photo(seed: int) -> bytes:
    from benchmarks.images import as_jpeg, photo

    return as_jpeg(photo(np.random.default_rng(seed)))


def make_dataset(work: str, plain: Path, folder: Path) -> None:
    """Write and seal the dataset of plain files."""
    size = sum(path.stat().st_size for path in plain.iterdir() if path.suffix != ".bin")
    source = Plain(num_shards=max(2, size // SHARD_BYTES), work=work, plain=plain)
    write_dataset(folder, source, f"{work}-{0:012x}")


class Plain(Source):
    """Rows of plain files.

    Args:
        work: kind of work.
        plain: folder of its files.
    """

    def __init__(self, *, num_shards: int, work: str, plain: Path) -> None:
        super().__init__(num_shards=num_shards)
        self._work, self._plain = work, plain

    @property
    def schema(self) -> Schema:
        """The columns of the kind of work."""
        if self._work == PHOTOS:
            return Schema(columns={"image": "bytes", "labels": "int64"})
        return Schema(
            columns={TOKENS: {"tokens": "int32[*]"}, BOXES: {"boxes": "float32[*,4]"}}[self._work]
        )

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows, which follow one another."""
        if self._work == PHOTOS:
            files = photo_files(self._plain)
            for row in self._rows(len(files), shard):
                columns = {"image": [files[row].read_bytes()], "labels": [row % NUM_CLASSES]}
                yield Table(ids=[row], columns=columns)
            return
        if self._work == TOKENS:
            values, offsets = tokens_of(self._plain), np.load(self._plain / "documents.npy")
        else:
            values, offsets = boxes_of(self._plain)
        rows = self._rows(len(offsets) - 1, shard)
        of_shard = offsets[rows.start : rows.stop + 1]
        column = Ragged(values=values[of_shard[0] : of_shard[-1]], offsets=of_shard - of_shard[0])
        yield Table(ids=np.arange(rows.start, rows.stop), columns={self._work: column})

    def _rows(self, total: int, shard: int) -> range:
        return range(total * shard // self.num_shards, total * (shard + 1) // self.num_shards)
