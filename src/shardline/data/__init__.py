"""Datasets: sources, shards, streams of batches, and the sample ledger."""
