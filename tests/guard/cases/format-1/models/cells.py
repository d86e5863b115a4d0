"""Images with a mask and a class."""

import numpy as np

from shardline.sources import Schema, Source, Table


class Cells(Source):
    """Noise: a pixel's class is whether it is bright, an image's that of its middle."""

    schema = Schema(
        columns={"image": "uint8[7,9,3]", "mask": "uint8[7,9]", "labels": "int64"},
        classes=("dark", "bright"),
    )

    def iter_tables(self, shard):
        images = np.random.default_rng(5).integers(0, 256, (40, 7, 9, 3), dtype=np.uint8)
        masks = (images[..., 0] > 127).astype(np.uint8)
        labels = masks[:, 3, 4].astype(np.int64)
        masks[:, 0] = 255
        yield Table(ids=np.arange(40), columns={"image": images, "mask": masks, "labels": labels})
