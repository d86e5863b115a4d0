"""A network that predicts a class for each pixel of an image."""

import math
from itertools import pairwise
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from shardline.core.errors import ConfigError, DataError
from shardline.data.collate import NamedBatch
from shardline.training.losses import token_mean
from shardline.training.models.model_inputs import SampleColumns, as_images, column_of, image_shape


class UNet(LightningModule):
    """The network of Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image Segmentation".

    Unlike the paper's network, this one pads images, so that each pixel gets a class. It uses group
    normalisation, which has no running statistics and is the same on any number of ranks. The model
    logs train_loss, val_loss, val_miou, test_loss, test_miou and test_pixel_accuracy. The mean IoU is
    computed from all pixels of a split together, over the classes that occur.

    Args:
        num_classes: Number of classes, from the dataset.
        sample_columns: Columns of the samples, from dataset and settings.
        classes: Number of classes of a pixel; default: that of the dataset.
        image: Column of the images, in a layout of `as_images`.
        mask: Column of the masks: the class of each pixel, integers [H, W].
        ignore_index: Value in a mask for pixels that do not count.
        width: Channels at full resolution; each halving of the resolution doubles them.
        depth: Number of halvings of the resolution.
        channels: Channels of an image; default: those of the dataset, or 3 if unknown.

    Attributes:
        column: Input column of `forward`: the images.

    Raises:
        ConfigError: The dataset has no such columns or no classes.
    """

    def __init__(
        self, num_classes: int = 0, sample_columns: SampleColumns = None, *, classes: int | None = None,
        image: str = "image", mask: str = "mask", ignore_index: int | None = None, width: int = 32,
        depth: int = 4, channels: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.classes = num_classes if classes is None else classes
        if self.classes < 2:
            raise ConfigError(
                f"model_args.classes={self.classes} is too small, expected at least 2; set it to the number of classes "
                "of a pixel"
            )
        shape = image_shape(sample_columns, image, "model_args.image")
        _check_mask(sample_columns, mask)
        self.image = self.column = image
        self.mask, self.ignore_index = mask, ignore_index
        self.channels = channels or (shape[0] if shape else 3)
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = _twice(self.channels, width)
        levels = list(pairwise(widths))
        self.down = nn.ModuleList(_twice(before, after) for before, after in levels)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(levels))
        self.merge = nn.ModuleList(_twice(2 * before, before) for before, _ in reversed(levels))
        self.head = nn.Conv2d(width, self.classes, 1)
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        # masks are checked before
        given: dict[str, Any] = {"ignore_index": ignore_index, "validate_args": False}
        self.val_miou = MulticlassJaccardIndex(self.classes, **given)
        self.test_miou = MulticlassJaccardIndex(self.classes, **given)
        self.test_pixel_accuracy = MulticlassAccuracy(self.classes, average="micro", **given)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes, H, W] of images of any height and width."""
        hidden = as_images(images, self.channels, self.head.weight.dtype)
        height, width = hidden.shape[2:]
        multiple = 2 ** len(self.down)
        hidden = functional.pad(hidden, (0, -width % multiple, 0, -height % multiple))
        hidden = self.first(hidden)
        kept = []
        for down in self.down:
            kept.append(hidden)
            hidden = down(functional.max_pool2d(hidden, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            hidden = merge(torch.cat([kept.pop(), up(hidden)], dim=1))
        logits: torch.Tensor = self.head(hidden)
        return logits[:, :, :height, :width]

    def losses(
        self, batch: NamedBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits [pixels, classes], masks, losses and weights [pixels] (0 for none), image by image.

        Raises:
            DataError: A mask has another shape than its image, or a value that is not a class.
        """
        logits, masks = self(batch[self.image]), batch[self.mask].long()
        size = [len(logits), *logits.shape[2:]]
        if list(masks.shape) != size:
            raise DataError(
                f"column {self.mask} has shape {list(masks.shape)}, expected {size}, a class for each pixel of "
                f"{self.image}; bring both to the same size"
            )
        counts = torch.ones_like(masks, dtype=torch.float32)
        if self.ignore_index is not None:
            counts = (masks != self.ignore_index).float()
        self._check(torch.where(counts > 0, masks, 0))
        if "weights" in batch:
            counts = counts * batch["weights"][:, None, None]
        # flat: the loss of [B, classes, H, W] is not deterministic on a GPU
        flat = logits.permute(0, 2, 3, 1).flatten(0, 2)
        ignored = -100 if self.ignore_index is None else self.ignore_index
        losses = functional.cross_entropy(
            flat, masks.flatten(), reduction="none", ignore_index=ignored
        )
        return flat, masks.flatten(), losses, counts.flatten()

    def training_step(self, batch: NamedBatch, batch_idx: int) -> torch.Tensor:
        """Return the mean loss of all counting pixels of the global batch, see `token_mean`."""
        _, _, losses, counts = self.losses(batch)
        is_full = self.ignore_index is None and "weights" not in batch
        loss = token_mean(losses, counts, mean_count=losses.numel() if is_full else None)
        self.log("train_loss", loss, batch_size=len(batch[self.mask]))
        return loss

    def validation_step(self, batch: NamedBatch, batch_idx: int) -> None:
        """Log loss and mean IoU; each pixel of all ranks counts once."""
        self._measure(batch, self.val_loss, {"val_miou": self.val_miou}, "val_loss")

    def test_step(self, batch: NamedBatch, batch_idx: int) -> dict[str, torch.Tensor]:
        """Log loss, mean IoU and pixel accuracy of held-out data, and return each image's mean loss [B]."""
        metrics = {"test_miou": self.test_miou, "test_pixel_accuracy": self.test_pixel_accuracy}
        losses, counts = self._measure(batch, self.test_loss, metrics, "test_loss")
        size = len(batch[self.mask]), -1
        means = (losses * counts).view(size).sum(1) / counts.view(size).sum(1).clamp(min=1)
        return {"sample_losses": means}

    def describe_sample(self, batch: NamedBatch) -> dict[str, Any]:
        """Return an image with its true and predicted masks; pixels that do not count get class 0.

        Args:
            batch: Batch of one sample.
        """
        logits, masks, _, counts = self.losses(batch)
        image, size = batch[self.image][0], batch[self.mask].shape[1:]
        if self.channels not in (1, 3):
            image = as_images(batch[self.image], self.channels, torch.float32)[0, :1]
        masks = torch.where(counts > 0, masks, 0)
        return {
            "image": image,
            "mask": {"true": masks.view(size), "predicted": logits.argmax(dim=1).view(size)},
        }

    def _measure(
        self, batch: NamedBatch, loss: MeanMetric, metrics: dict[str, Metric], name: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits, masks, losses, counts = self.losses(batch)
        loss.update(losses, counts)
        predicted = logits.argmax(dim=1)
        for metric in metrics.values():
            metric.update(predicted, masks)
        self.log_dict({**metrics, name: loss}, batch_size=len(batch[self.mask]))
        return losses, counts

    def _check(self, masks: torch.Tensor) -> None:
        least, most = (int(of) for of in masks.aminmax())
        if least < 0 or most >= self.classes:
            raise DataError(
                f"column {self.mask} has the value {least if least < 0 else most}, expected 0 to {self.classes - 1}; "
                "raise model_args.classes, or set model_args.ignore_index to the value of pixels that do not count"
            )


def _twice(before: int, after: int) -> nn.Sequential:
    """Return two 3x3 convolutions."""
    layers: list[nn.Module] = []
    for width in (before, after):
        layers += [
            nn.Conv2d(width, after, 3, padding=1, bias=False),
            nn.GroupNorm(math.gcd(8, after), after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def _check_mask(columns: SampleColumns, name: str) -> None:
    column = column_of(columns, name, "model_args.mask")
    if column is None:
        return
    is_mask = len(column.shape) == 2 and not column.varies and not column.optional
    if not is_mask or not column.dtype.removeprefix("u").startswith("int"):
        raise ConfigError(
            f"model_args.mask={name} is {column}, expected a class for each pixel such as uint8[height,width]; decode "
            "and convert the masks in the source or by a transform"
        )
