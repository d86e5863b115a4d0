"""A source of unlabelled images, and transforms that make two views of each image."""

import numpy as np
from shardline.sources import Schema, Source, Table, shard_range

SIDE = 32


class Images(Source):
    """Reads images [N, 32, 32] from a NumPy file."""

    schema = Schema(columns={"image": f"uint8[{SIDE},{SIDE}]"})

    def iter_tables(self, shard):
        images = np.load(self.files[0], mmap_mode="r", allow_pickle=False)
        rows = shard_range(len(images), shard, self.num_shards)
        ids = np.arange(rows.start, rows.stop)
        yield Table(ids=ids, columns={"image": np.asarray(images[rows.start : rows.stop])})


def view(image, generator):
    """Return a random crop [24, 24], rotated, mirrored, with random contrast, and centred on 0."""
    top, left = generator.integers(0, SIDE - 24 + 1, 2)
    crop = image[top : top + 24, left : left + 24].astype(np.float32) / 128 - 1
    crop = np.rot90(crop, generator.integers(0, 4))
    crop = crop[:, ::-1] if generator.random() < 0.5 else crop
    return np.ascontiguousarray(crop * generator.uniform(0.6, 1.4) + generator.uniform(-0.3, 0.3))


class TwoViews:
    """Makes two random views of an image, with the generator of the sample."""

    def __call__(self, sample, generator):
        views = np.stack([view(sample["image"], generator) for _ in range(2)])
        return {"views": views.astype(np.float32)}


class FixedViews:
    """Makes two views of a held-out image, the same in each epoch."""

    def __call__(self, sample):
        return TwoViews()(sample, np.random.default_rng(0))
