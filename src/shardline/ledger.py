"""The sample ledger: the public name of `shardline.data.ledger`."""

from shardline.data.ledger import read_ledger

__all__ = ["read_ledger"]
