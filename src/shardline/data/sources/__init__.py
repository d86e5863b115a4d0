"""Data sources: classes that read the rows of a dataset."""

from shardline.data.sources.source import Ragged, Schema, Source, Table, shard_range
from shardline.data.splits import SPLITS

__all__ = ["SPLITS", "Ragged", "Schema", "Source", "Table", "shard_range"]
