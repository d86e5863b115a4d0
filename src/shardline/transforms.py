"""Transforms of samples: the public names of `shardline.data.transforms`."""

from shardline.data.transforms.compose import Compose
from shardline.data.transforms.image_transforms import (
    CenterCrop,
    ColorJitter,
    Decode,
    Flip,
    Normalize,
    RandomResizedCrop,
    Resize,
)

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Decode",
    "Flip",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
]
