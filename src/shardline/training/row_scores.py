"""Scores of a batch by row: what they are, checks of the outputs, and their sum."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from shardline.core.errors import DataError

Columns = Mapping[str, np.ndarray]


def sum_of(column: np.ndarray) -> float:
    """Return the sum of a block's values [n]."""
    return float(torch.from_numpy(column).sum())


def check_shape(run: str, outputs: torch.Tensor, expected: tuple[int, ...], what: str = "") -> None:
    """Reject outputs of another shape.

    Raises:
        DataError: The shape differs; the message names both.
    """
    if outputs.shape != expected:
        raise DataError(
            f'run "{run}": forward returned shape {tuple(outputs.shape)}, expected {what}{expected}; '
            "fix the model's forward"
        )


def check_finite(run: str, outputs: torch.Tensor) -> None:
    """Reject outputs that are NaN or infinite.

    Raises:
        DataError: An output is not finite.
    """
    if not all(math.isfinite(end) for end in outputs.aminmax()):  # any NaN makes both ends NaN
        raise DataError(
            f'run "{run}": forward returned NaN or infinity, expected finite outputs; train with a '
            "lower optim.lr, or fix the model's forward"
        )
