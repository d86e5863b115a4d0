"""Sealed models for others to use: in a format of theirs, with a card, checked against the original."""
