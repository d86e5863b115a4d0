import numpy as np
from shardline.sources import Schema, Source, Table, shard_range


class Rings(Source):
    def __init__(self, *, noise=0.1, **arguments):
        super().__init__(**arguments)
        self.noise = noise

    @property
    def schema(self):
        return Schema(feature_shape=(2,), classes=("inner", "outer"))

    def iter_tables(self, shard):
        radius, angle = np.loadtxt(self.files[0], delimiter=",", unpack=True)
        rows = shard_range(len(radius), shard, self.num_shards)
        ids = np.arange(rows.start, rows.stop)
        noise = np.random.default_rng([7, shard]).normal(0, self.noise, (len(ids), 2))
        points = radius[ids, None] * np.stack([np.cos(angle[ids]), np.sin(angle[ids])], axis=1)
        yield Table(ids=ids, features=points + noise, labels=radius[ids] > 1.5)
