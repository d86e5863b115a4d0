"""The largest weight of a sealed model, recorded since a training that went wrong shows in it."""

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import safe_open

_CHUNK = 1 << 24  # values that are looked at together: 64 MB of float32


def largest_weight(path: Path, parameters: Collection[str] = ()) -> float | None:
    """Return the largest absolute value of a model's parameters; None where it has none.

    A tensor is read at a time. Buffers do not count: running statistics and masks may hold any number.

    Args:
        path: model.safetensors, whose values are finite.
        parameters: names of the parameters; if that is not known, those count that end with `weight` or `bias`.
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
    # 8-bit numbers have no abs() of their own
    return max(float((one if one.is_complex() else one.float()).abs().max()) for one in chunks)
