"""The task of a competitor: which rows, in what batches, as which rank."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = tuple[Any, Any]  # NumPy arrays of one shard: features [N, F], labels [N] int64
Batch = tuple[Any, Any]  # torch tensors: features [B, F], labels [B] int64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a row is: features, and one int64 label.

    Attributes:
        features: numbers in a row.
        dtype: their NumPy type.
        row_bytes: bytes of a row's features.
        rows_per_shard: rows of all splits in a shard.
    """

    name: str
    features: int
    dtype: str
    row_bytes: int
    rows_per_shard: int = 10_000


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="wide", features=1000, dtype="float32", row_bytes=4000),
        Shape(name="narrow", features=64, dtype="uint8", row_bytes=64),
    )
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One rank's stream of batches.

    Attributes:
        folder: where the competitor's own format of the rows lies.
        batch: rows in a batch of one rank.
        options: the competitor's own choices, such as `workers`.
    """

    folder: Path
    shape: Shape
    batch: int
    rank: int = 0
    world_size: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """DataLoader workers; 0 loads in the rank's own process."""
        return self.options.get("workers", 0)
