"""Sealed results: their states and staleness, verification, comparison, replay, export, deletion."""
