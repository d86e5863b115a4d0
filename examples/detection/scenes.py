"""A source of images with varying numbers of boxes."""

import json
from functools import cached_property

import numpy as np
from PIL import Image
from shardline.sources import Schema, Source, Table, shard_range

SIDE = 64


class Scenes(Source):
    """Reads the images that boxes.jsonl lists, with their boxes and kinds."""

    schema = Schema(
        columns={"image": f"uint8[{SIDE},{SIDE}]", "boxes": "float32[*,4]", "kinds": "int64[*]"}
    )

    @cached_property
    def lines(self):
        (listed,) = (path for path in self.files if path.suffix == ".jsonl")
        return [json.loads(line) for line in listed.read_text().splitlines()]

    def iter_tables(self, shard):
        images = {path.name: path for path in self.files}
        rows = shard_range(len(self.lines), shard, self.num_shards)
        lines = self.lines[rows.start : rows.stop]
        columns = {
            "image": np.stack(
                [np.asarray(Image.open(images[line["image"].rpartition("/")[2]])) for line in lines]
            ),
            "boxes": [np.reshape(line["boxes"], (-1, 4)).astype(np.float32) for line in lines],
            "kinds": [np.array(line["kinds"], np.int64) for line in lines],
        }
        yield Table(ids=np.arange(rows.start, rows.stop), columns=columns)
