"""Lineage of a file, back to its sources."""
