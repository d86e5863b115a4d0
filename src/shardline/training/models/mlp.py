"""A multilayer perceptron."""

import math
from itertools import pairwise

import torch
from torch import nn

from shardline.training.models.classifier_base import Classifier, refuse_numbers


class MLP(Classifier):
    """Fully connected layers with ReLU and dropout.

    Args:
        feature_shape: Shape of one row, from the dataset.
        num_classes: Number of classes, from the dataset.
        hidden: Width of each hidden layer.
        layers: Number of hidden layers.
        dropout: Probability of dropping a hidden unit in training.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, hidden: int = 128, layers: int = 2,
        dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        refuse_numbers("mlp", num_classes)
        widths = [math.prod(feature_shape), *[hidden] * layers]
        blocks = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))
            for a, b in pairwise(widths)
        ]
        self.net = nn.Sequential(nn.Flatten(), *blocks, nn.Linear(widths[-1], num_classes))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of features [B, *feature_shape]."""
        logits: torch.Tensor = self.net(features)
        return logits
