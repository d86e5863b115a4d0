"""Residual networks for images."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest
from shardline.data.collate import NamedBatch
from shardline.training.models.classifier_base import Classifier, Task
from shardline.training.models.model_inputs import (
    FEATURES,
    SampleColumns,
    as_images,
    is_table,
    labelled_images,
)
from shardline_io.column_names import WEIGHT

_SMALL = 64  # largest shorter edge in pixels for the small stem
_STEMS = ("auto", "small", "large")


class ResNet(Classifier):
    """The residual network of He et al. 2016, "Deep Residual Learning for Image Recognition".

    Depth 18 has two basic blocks in each of four stages, depth 50 has 3, 4, 6 and 3 bottlenecks. A
    bottleneck's stride is in its 3x3 convolution, as in torchvision. The number of parameters is the
    published one: 11,689,512 (depth 18) and 25,557,032 (depth 50) with 1,000 classes.

    Args:
        num_classes: Number of classes, from the dataset.
        sample_columns: Columns of the samples, from dataset and settings.
        depth: 18 or 50.
        stem: `large`: the paper's stem for ImageNet, which divides the resolution by 4. `small`: a
            3x3 convolution without pooling, as for CIFAR. `auto`: small up to 64 pixels, else large.
        column: Column of the images; in a table the images are its features.
        channels: Channels of an image; default: those of the dataset, or 3 if unknown.
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels, from the dataset.
        loss: Loss of numbers, see `Classifier`.
        scale_targets: Whether outputs are scaled by the labels' mean and deviation, see `Classifier`.

    Raises:
        ConfigError: A setting has another value, or the dataset has no images or no labels that the model predicts.
    """

    def __init__(
        self, num_classes: int, sample_columns: SampleColumns = None, *, depth: int = 18,
        stem: Literal["auto", "small", "large"] = "auto", column: str = "image", channels: int | None = None,
        task: Task = "classification", num_targets: int = 0, loss: str | None = None, scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task=task, num_targets=num_targets, loss=loss, scale_targets=scale_targets)
        if depth not in _LAYOUTS:
            raise ConfigError(
                f"model_args.depth={depth} is not supported, expected 18 or 50; use one of them"
            )
        if stem not in _STEMS:
            raise ConfigError(f"model_args.stem={stem} is not known; {suggest(str(stem), _STEMS)}")
        # a weighted table has batches by column
        self.column = (
            FEATURES if WEIGHT in (sample_columns or ()) and is_table(sample_columns) else column
        )
        shape = labelled_images(sample_columns, column, num_classes, "resnet", num_targets)
        if stem == "auto":
            if shape is None:
                raise ConfigError(
                    "model_args.stem=auto needs the images' size, which is unknown before samples are made; set "
                    f"model_args.stem to small for images of up to {_SMALL} pixels, else to large"
                )
            stem = "small" if min(shape[1:]) <= _SMALL else "large"
        self.channels = channels or (shape[0] if shape else 3)
        block, counts = _LAYOUTS[depth]
        layers: list[nn.Module] = [*_stem(self.channels, stem)]
        width = 64
        for stage, count in enumerate(counts):
            for place in range(count):
                made = block(width, 64 * 2**stage, 2 if stage and not place else 1)
                layers.append(made)
                width = made.width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_targets or num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor | NamedBatch) -> torch.Tensor:
        """Return logits [B, C], or numbers [B, T], of images in a layout of `as_images`, or of a batch by column."""
        images = images[self.column] if isinstance(images, dict) else images
        images = as_images(images, self.channels, self.head.weight.dtype)
        # adaptive pooling has no deterministic gradient on a GPU
        logits: torch.Tensor = self.head(self.body(images).mean(dim=(2, 3)))
        return self.scaled_back(logits)


def _stem(channels: int, stem: str) -> list[nn.Module]:
    size, stride = (3, 1) if stem == "small" else (7, 2)
    first = nn.Conv2d(channels, 64, size, stride=stride, padding=size // 2, bias=False)
    pool = [] if stem == "small" else [nn.MaxPool2d(3, stride=2, padding=1)]
    return [first, nn.BatchNorm2d(64), nn.ReLU(), *pool]


class _Block(nn.Module):
    """Convolutions with a residual connection.

    Attributes:
        width: Channels of the output.
    """

    def __init__(self, parts: list[nn.Module], before: int, width: int, stride: int) -> None:
        super().__init__()
        self.width = width
        self.parts = nn.Sequential(*parts)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return [B, width, H / stride, W / stride]."""
        return functional.relu(self.parts(images) + self.shortcut(images))


def _convolution(before: int, width: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, width, size, stride=stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(width)]


def _basic(before: int, width: int, stride: int) -> _Block:
    first, second = _convolution(before, width, 3, stride), _convolution(width, width, 3)
    return _Block([*first, nn.ReLU(), *second], before, width, stride)


def _bottleneck(before: int, width: int, stride: int) -> _Block:
    first, middle = _convolution(before, width, 1), _convolution(width, width, 3, stride)
    last = _convolution(width, 4 * width, 1)
    return _Block([*first, nn.ReLU(), *middle, nn.ReLU(), *last], before, 4 * width, stride)


_LAYOUTS: dict[int, tuple[Callable[[int, int, int], _Block], tuple[int, ...]]] = {
    18: (_basic, (2, 2, 2, 2)),
    50: (_bottleneck, (3, 4, 6, 3)),
}
