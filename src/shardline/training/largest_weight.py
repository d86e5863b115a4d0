"""Find the largest weight of a sealed model, which shows a training that went wrong."""

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import safe_open

_CHUNK = 1 << 24  # values at a time: 64 MB of float32


def largest_weight(path: Path, parameters: Collection[str] = ()) -> float | None:
    """Return the largest absolute value of a model's parameters; None if it has none.

    Buffers do not count, since running statistics and masks may contain any number.

    Args:
        path: File of the sealed weights, whose values are finite.
        parameters: Names of the parameters; if empty, all names that end with `weight` or `bias`.
    """
    largest = None
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118, a file is no mapping
            known = name in parameters if parameters else name.split(".")[-1] in ("weight", "bias")
            value = file.get_tensor(name) if known else torch.empty(0)
            if value.numel() and (value.is_floating_point() or value.is_complex()):
                largest = max(largest or 0.0, _largest(value))
    return largest


def _largest(value: torch.Tensor) -> float:
    chunks = torch.split(value.flatten(), _CHUNK)
    # torch has no abs() of 8-bit floats
    return max(float((one if one.is_complex() else one.float()).abs().max()) for one in chunks)
