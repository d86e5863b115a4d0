"""Models to derive from: the public name of `shardline.training.models`."""

from shardline.training.models.base import Classifier

__all__ = ["Classifier"]
