"""Handwritten digits bundled with scikit-learn: 1,797 images of 8 x 8 pixels."""

from collections.abc import Iterator

import numpy as np

from shardline.data.sources.source import Schema, Source, Table, shard_range


class Digits(Source):
    """The test part of UCI's optical recognition set (Alpaydin and Kaynak, 1998).

    Features are [8, 8] float32 with grey values 0 to 16; labels are the digits.
    """

    @property
    def schema(self) -> Schema:
        """Schema: images [8, 8] with one channel, ten classes."""
        return Schema(feature_shape=(8, 8), classes=tuple(map(str, range(10))))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows in one block. A row's id is its index in the file."""
        from sklearn.datasets import load_digits  # this import takes a second

        digits = load_digits()
        rows = shard_range(len(digits.target), shard, self.num_shards)
        part = slice(rows.start, rows.stop)
        yield Table(
            ids=np.arange(rows.start, rows.stop, dtype=np.int64),
            features=digits.images[part].astype(np.float32),
            labels=digits.target[part].astype(np.int64),
        )
