"""Sources of rows: the public names of `shardline.data.sources`."""

from shardline.data.sources import SPLITS, Ragged, Schema, Source, Table, shard_range

__all__ = ["SPLITS", "Ragged", "Schema", "Source", "Table", "shard_range"]
