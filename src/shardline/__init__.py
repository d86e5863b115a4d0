"""Shardline: reproducible experiment pipeline for distributed deep learning, on Snakemake."""

__version__ = "0.1.0"
