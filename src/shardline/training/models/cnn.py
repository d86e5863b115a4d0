"""A small convolutional network for single-channel images."""

import torch
from torch import nn

from shardline.core.errors import ConfigError
from shardline.training.models.classifier_base import Classifier, refuse_numbers


class CNN(Classifier):
    """A network of two convolutions, one pooling and one hidden layer.

    Args:
        feature_shape: (height, width) of an image, from the dataset; each at least 4.
        num_classes: Number of classes, from the dataset.
        channels: Number of filters of the first convolution; the second has twice as many.

    Raises:
        ConfigError: The dataset has no classes, or its rows are not single-channel images.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, channels: int = 16
    ) -> None:
        super().__init__()
        refuse_numbers("cnn", num_classes)
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
            nn.Linear(64, num_classes),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of features [B, H, W]."""
        logits: torch.Tensor = self.net(features.unsqueeze(1))
        return logits
