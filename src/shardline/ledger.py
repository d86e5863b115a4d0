"""The sample ledger: the public names of `shardline.data.ledger`."""

from shardline.data.ledger import read_ledger, read_samples

__all__ = ["read_ledger", "read_samples"]
