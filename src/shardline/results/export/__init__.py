"""Sealed models for others to use: in a format of theirs, with a card, checked against the original."""

from shardline.results.export.start import FORMATS, Check, Exported, export_run

__all__ = ["FORMATS", "Check", "Exported", "export_run"]
