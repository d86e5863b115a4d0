"""`hf:AutoModelForImageClassification`: a transformers model that classifies images."""

import torch

from shardline.data.collate import NamedBatch
from shardline.training.models.classifier_base import Classifier
from shardline.training.models.huggingface import HubConfig, make_hub_model
from shardline.training.models.model_inputs import SampleColumns, as_images, labelled_images


class ImageClassification(Classifier):
    """Classifies images with a transformers model; logs the same metrics as `resnet`.

    Args:
        num_classes: Number of classes, from the dataset.
        sample_columns: Columns of the samples, from dataset and settings.
        config: Table with `model_type`, or folder with a `config.json`. A table gets `num_channels`
            and `image_size` from the dataset if it does not set them.
        pretrained: Folder with a `config.json` and the initial weights.
        column: Column of the images; in a table the images are its features.

    Attributes:
        hub: The transformers model.

    Raises:
        ConfigError: See `make_hub_model`; or the dataset has no images or no classes.
    """

    def __init__(
        self, num_classes: int, sample_columns: SampleColumns = None, *,
        config: HubConfig = None, pretrained: str | None = None,
        column: str = "image",
    ) -> None:  # fmt: skip
        super().__init__()
        self.column = column
        head = "AutoModelForImageClassification"
        shape = labelled_images(sample_columns, column, num_classes, f"hf:{head}")
        sizes: dict[str, int | list[int]] = {"num_labels": num_classes}
        if shape:
            channels, height, width = shape
            size = height if height == width else [height, width]
            sizes |= {"num_channels": channels, "image_size": size}
        self.hub = make_hub_model(head, config, pretrained, **sizes)
        self.channels: int = getattr(self.hub.config, "num_channels", None) or 3

    def forward(self, images: torch.Tensor | NamedBatch) -> torch.Tensor:
        """Return logits [B, C] of images in a layout of `as_images`, or of a batch by column."""
        images = images[self.column] if isinstance(images, dict) else images
        logits: torch.Tensor = self.hub(
            pixel_values=as_images(images, self.channels, self.hub.dtype)
        ).logits
        return logits
