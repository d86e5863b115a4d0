"""A small convolutional network for single-channel images."""

import torch
from torch import nn

from shardline.core.errors import ConfigError
from shardline.training.models.classifier_base import Classifier, Task, num_outputs


class CNN(Classifier):
    """A network of two convolutions, one pooling and one hidden layer.

    Args:
        feature_shape: (height, width) of an image, from the dataset; each at least 4.
        num_classes: Number of classes, from the dataset.
        channels: Number of filters of the first convolution; the second has twice as many.
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels, from the dataset.
        loss: Loss of numbers, see `Classifier`.
        scale_targets: Whether outputs are scaled by the labels' mean and deviation, see `Classifier`.

    Raises:
        ConfigError: The dataset has no labels that the model predicts, or its rows are not single-channel images.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, channels: int = 16,
        task: Task = "classification", num_targets: int = 0, loss: str | None = None, scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task=task, num_targets=num_targets, loss=loss, scale_targets=scale_targets)
        outputs = num_outputs("cnn", num_classes, num_targets)
        if len(feature_shape) != 2 or min(feature_shape) < 4:
            raise ConfigError(
                f"model=cnn expects images [height, width] of at least 4 x 4 pixels, but a row has shape "
                f"{tuple(feature_shape)}; use mlp or linear"
            )
        height, width = feature_shape
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * (height // 2) * (width // 2), 64),
            nn.ReLU(),
            nn.Linear(64, outputs),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C], or numbers [B, T], of features [B, H, W]."""
        return self.scaled_back(self.net(features.unsqueeze(1)))
