"""A model whose numbers follow whatever variable of the shell reaches its process."""

import os
import sys

import torch

from shardline.training.models.linear import Linear


class Hashed(Linear):
    """Is initialised in the order of a set of texts, and scaled by what it finds of the shell."""

    def __init__(self, feature_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(feature_shape, num_classes)
        order = [ord(one) for one in {"a", "b", "c", "d", "e", "f", "g", "h"}]
        found = [one for one in os.environ if one.startswith(("PL_T", "LT_", "TORCH_M", "ACCEL"))]
        with torch.no_grad():
            for weight in self.parameters():
                weight += order.index(97) + 10 * len(found) + 100 * sys.flags.optimize
