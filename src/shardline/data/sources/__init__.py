"""Sources: where a dataset's rows come from."""

from shardline.data.sources.base import Schema, Source, Table, shard_range
from shardline.data.splits import SPLITS

__all__ = ["SPLITS", "Schema", "Source", "Table", "shard_range"]
