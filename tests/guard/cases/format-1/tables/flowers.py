"""A torch dataset whose transform draws, which is left out of the shards and applied when rows are read."""

import random
from typing import Any

import torch
from torch.utils.data import Dataset


class Jitter:
    """Adds noise from two global generators."""

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample + 0.1 * torch.randn(3) + random.uniform(-0.1, 0.1)


class Flowers(Dataset):
    """Rows of three numbers with a class."""

    classes = ("small", "large")

    def __init__(self, rows: int, transform: Any = None) -> None:
        self.rows, self.transform = rows, transform or Jitter()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if row >= self.rows:
            raise IndexError(row)
        sample = torch.tensor([row % 7, row % 5, row % 3]).float()
        return self.transform(sample), int(sample.sum() > 6)
