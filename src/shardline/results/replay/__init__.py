"""Replay: evaluate a sealed model again, and compare every recorded number."""
