"""Transforms: what is done with one sample between its shard and its batch."""
