"""A source of images and masks in two folders, with the same file names."""

from functools import cached_property

import numpy as np
from PIL import Image
from shardline.errors import DataError
from shardline.sources import Schema, Source, Table, shard_range


class Cells(Source):
    """Reads PNG images of one size, and for each image a mask with the class of each pixel."""

    @cached_property
    def pairs(self):
        images = [path for path in self.files if path.parent.name == "images"]
        masks = {path.name: path for path in self.files if path.parent.name == "masks"}
        for image in images:
            if image.name not in masks:
                raise DataError(f"{image} has no masks/{image.name} in source.files; add the mask")
        return [(image, masks[image.name]) for image in images]

    @property
    def schema(self):
        with Image.open(self.pairs[0][0]) as image:
            width, height = image.size
        return Schema(
            columns={"image": f"uint8[{height},{width}]", "mask": f"uint8[{height},{width}]"}
        )

    def iter_tables(self, shard):
        rows = shard_range(len(self.pairs), shard, self.num_shards)
        images, masks = (
            np.stack(
                [np.asarray(Image.open(pair[part])) for pair in self.pairs[rows.start : rows.stop]]
            )
            for part in range(2)
        )
        ids = np.arange(rows.start, rows.stop)
        yield Table(ids=ids, columns={"image": images, "mask": masks})
