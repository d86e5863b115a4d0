"""Transforms of single samples, applied after the shard is read and before the batch is made."""
