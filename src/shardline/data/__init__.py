"""Datasets: sources, shards, streaming, the sample ledger."""
