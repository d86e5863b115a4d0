"""Sources: where a dataset's rows come from."""

from shardline.sources.base import SPLITS, Schema, Source, Table, shard_range

__all__ = ["SPLITS", "Schema", "Source", "Table", "shard_range"]
