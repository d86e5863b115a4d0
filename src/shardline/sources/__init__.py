"""Sources: where a dataset's rows come from."""

from shardline.sources.base import Schema, Source, Table, shard_range

__all__ = ["Schema", "Source", "Table", "shard_range"]
