"""Rows that are made at once: decoded images and tokens, of a fixed seed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.gpu.sizes import CLASSES

from shardline.sources import Schema, Source, Table

_BLOCK = 400  # rows of a table, 60 MB of large images


class Images(Source):
    """Decoded images of noise around a level of their class.

    Args:
        rows: of a shard.
        size: pixels of an edge.
    """

    def __init__(self, *, num_shards: int, rows: int, size: int, **others: Any) -> None:
        super().__init__(num_shards=num_shards, **others)
        self._rows, self._size = rows, size

    @property
    def schema(self) -> Schema:
        """Three channels of bytes, and a class."""
        return Schema(
            feature_shape=(3, self._size, self._size), feature_dtype="uint8", task="classification",
            classes=tuple(f"class {number}" for number in range(CLASSES)),
        )  # fmt: skip

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield a shard's rows."""
        generator = np.random.default_rng(shard)
        for ids, count in _blocks(shard, self._rows):
            labels = generator.integers(0, CLASSES, count)
            noise = generator.bytes(count * 3 * self._size**2)
            features = np.frombuffer(noise, np.uint8).reshape(count, 3, self._size, self._size) // 2
            features += (labels * (127 // CLASSES)).astype(np.uint8)[:, None, None, None]
            yield Table(ids=ids, features=features, labels=labels)


class Tokens(Source):
    """Texts of tokens, of which each is near the one before.

    Args:
        rows: of a shard.
        length: tokens of a row.
        vocab: number of tokens.
    """

    def __init__(
        self, *, num_shards: int, rows: int, length: int, vocab: int, **others: Any
    ) -> None:
        super().__init__(num_shards=num_shards, **others)
        self._rows, self._length, self._vocab = rows, length, vocab

    @property
    def schema(self) -> Schema:
        """A column of tokens."""
        return Schema(columns={"tokens": f"uint16[{self._length}]"})

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield a shard's rows."""
        generator = np.random.default_rng(shard)
        for ids, count in _blocks(shard, self._rows):
            steps = generator.integers(0, 3, (count, self._length)).cumsum(axis=1)
            yield Table(ids=ids, columns={"tokens": (steps % self._vocab).astype(np.uint16)})


def _blocks(shard: int, rows: int) -> Iterator[tuple[np.ndarray, int]]:
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        first = shard * rows + start
        yield np.arange(first, first + count), count
