"""A sealed model as others call it: tensors by position, normalisation inside."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch

from shardline.data.transforms.image import Normalize
from shardline.results.export.calls import Call, named_outputs


class Deployed(pl.LightningModule):
    """A model that takes its tensors before they are normalised.

    A LightningModule, since Lightning knows how to have its own kind traced.

    Args:
        model: the sealed model.
        call: what its `forward` takes.
        steps: by name of a tensor, what is done to it first.
    """

    def __init__(
        self, model: torch.nn.Module, call: Call, steps: Mapping[str, torch.nn.Module]
    ) -> None:
        super().__init__()
        self.model, self.call = model, call
        self.steps = torch.nn.ModuleList(steps.get(n, torch.nn.Identity()) for n in call.names)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the model's outputs: a tensor, or a tuple of several in the order of `named_outputs`."""
        ready = [step(tensor) for step, tensor in zip(self.steps, tensors, strict=True)]
        found = tuple(named_outputs(self.model, self.call(self.model, ready)).values())
        return found[0] if len(found) == 1 else found


class Features(torch.nn.Module):
    """Normalises a table's features by constants of its train rows.

    Args:
        constants: shift and scale [*feature_shape] float32; None where nothing is normalised.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(self, constants: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        super().__init__()
        shift, scale = constants or (None, None)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features [B, *feature_shape] of the stored type as the model takes them, float32."""
        features = features.to(torch.float32)
        if self.shift is not None and self.scale is not None:
            features = (features - self.shift) * self.scale
        return features


class Pixels(torch.nn.Module):
    """Does to a batch of images what the transform `normalize` does to one."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        self.register_buffer("scale", torch.from_numpy(normalize.scale.copy()))
        self.register_buffer("shift", torch.from_numpy(normalize.shift.copy()))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return [B, channels, height, width] float32 of pixels [B, height, width, channels]."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32) * self.scale - self.shift
