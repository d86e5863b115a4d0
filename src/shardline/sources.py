"""Sources of rows: the public name of `shardline.data.sources`."""

from shardline.data.sources import SPLITS, Schema, Source, Table, shard_range

__all__ = ["SPLITS", "Schema", "Source", "Table", "shard_range"]
