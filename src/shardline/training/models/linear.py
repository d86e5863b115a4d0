"""A one-layer model for debugging distributed training."""

import math

import torch
from torch import nn

from shardline.training.models.classifier_base import Classifier, Task, num_outputs


class Linear(Classifier):
    """Multinomial logistic regression, or linear regression of numbers.

    Args:
        feature_shape: Shape of one row, from the dataset.
        num_classes: Number of classes, from the dataset.
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels, from the dataset.
        loss: Loss of numbers, see `Classifier`.
        scale_targets: Whether outputs are scaled by the labels' mean and deviation, see `Classifier`.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, task: Task = "classification",
        num_targets: int = 0, loss: str | None = None, scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task=task, num_targets=num_targets, loss=loss, scale_targets=scale_targets)
        outputs = num_outputs("linear", num_classes, num_targets)
        self.layer = nn.Linear(math.prod(feature_shape), outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C], or numbers [B, T], of features [B, *feature_shape]."""
        return self.scaled_back(self.layer(features.flatten(1)))
