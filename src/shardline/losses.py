"""Losses for models: the public name of `shardline.training.losses`."""

from shardline.training.losses import token_mean

__all__ = ["token_mean"]
