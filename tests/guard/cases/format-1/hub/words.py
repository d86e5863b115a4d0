"""Rows of tokens with a class, tags, hidden tokens and an image."""

import numpy as np

from shardline.sources import Schema, Source, Table


class Words(Source):
    """Noise: a row's class and a token's tag are what is left of them by three."""

    schema = Schema(
        columns={
            "tokens": "uint8[*]",
            "tags": "int64[*]",
            "image": "uint8[8,8]",
            "labels": "int64",
        },
        classes=("a", "b", "c"),
    )

    def iter_tables(self, shard):
        rng = np.random.default_rng(7)
        tokens = [rng.integers(0, 32, 2 + row % 5, np.uint8) for row in range(40)]
        columns = {
            "tokens": tokens,
            "tags": [np.where(of % 4, of.astype(np.int64) % 3, -100) for of in tokens],
            "image": rng.integers(0, 256, (40, 8, 8), np.uint8),
            "labels": np.array([int(of.sum()) % 3 for of in tokens]),
        }
        yield Table(ids=np.arange(40), columns=columns)
