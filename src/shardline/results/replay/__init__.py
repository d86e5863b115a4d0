"""Evaluating a sealed model once more, and holding every recorded number against what comes out."""

from shardline.results.replay.compare import DIFFERENT, Number
from shardline.results.replay.start import Replay, replay

__all__ = ["DIFFERENT", "Number", "Replay", "replay"]
