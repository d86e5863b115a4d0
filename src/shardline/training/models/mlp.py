"""A multilayer perceptron."""

import math
from itertools import pairwise

import torch
from torch import nn

from shardline.training.models.classifier_base import Classifier, Task, num_outputs


class MLP(Classifier):
    """Fully connected layers with ReLU and dropout.

    Args:
        feature_shape: Shape of one row, from the dataset.
        num_classes: Number of classes, from the dataset.
        hidden: Width of each hidden layer.
        layers: Number of hidden layers.
        dropout: Probability of dropping a hidden unit in training.
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels, from the dataset.
        loss: Loss of numbers, see `Classifier`.
        scale_targets: Whether outputs are scaled by the labels' mean and deviation, see `Classifier`.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, hidden: int = 128, layers: int = 2,
        dropout: float = 0.1, task: Task = "classification", num_targets: int = 0, loss: str | None = None,
        scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task=task, num_targets=num_targets, loss=loss, scale_targets=scale_targets)
        outputs = num_outputs("mlp", num_classes, num_targets)
        widths = [math.prod(feature_shape), *[hidden] * layers]
        blocks = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))
            for a, b in pairwise(widths)
        ]
        self.net = nn.Sequential(nn.Flatten(), *blocks, nn.Linear(widths[-1], outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C], or numbers [B, T], of features [B, *feature_shape]."""
        return self.scaled_back(self.net(features))
