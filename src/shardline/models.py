"""Models to train or to derive from: the public names of `shardline.training.models`."""

import importlib
from typing import TYPE_CHECKING, Any

from shardline.training.models.classifier_base import Classifier

if TYPE_CHECKING:
    from shardline.training.models.gpt import GPT
    from shardline.training.models.resnet import ResNet
    from shardline.training.models.unet import UNet

__all__ = ["GPT", "Classifier", "ResNet", "UNet"]


def __getattr__(name: str) -> Any:
    # Imported at first use: an import above would add every model to the identity of code that derives from one.
    if name in __all__:
        return getattr(importlib.import_module(f"shardline.training.models.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
