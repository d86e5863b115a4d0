"""A one-layer model for debugging distributed training."""

import math

import torch
from torch import nn

from shardline.training.models.classifier_base import Classifier, refuse_numbers


class Linear(Classifier):
    """Multinomial logistic regression.

    Args:
        feature_shape: Shape of one row, from the dataset.
        num_classes: Number of classes, from the dataset.
    """

    def __init__(self, feature_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        refuse_numbers("linear", num_classes)
        self.layer = nn.Linear(math.prod(feature_shape), num_classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of features [B, *feature_shape]."""
        logits: torch.Tensor = self.layer(features.flatten(1))
        return logits
