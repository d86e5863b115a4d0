"""Datasets: sources, shards, the order of samples, streaming, the sample ledger."""
