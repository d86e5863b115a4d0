"""What a competitor reads: the kinds of work, and one stream of batches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PHOTOS, TOKENS, BOXES = "photos", "tokens", "boxes"
BATCH = {PHOTOS: 32, TOKENS: 32, BOXES: 64}
IMAGE_SIZE = 224
BLOCK = 1024  # tokens of a sample


@dataclass(frozen=True, kw_only=True)
class Task:
    """A stream of batches.

    Attributes:
        work: `photos`, `tokens` or `boxes`.
        folder: where the competitor's own format of the data lies.
        plain: where the data lies as it was made, see `made`.
        options: the competitor's own choices, such as `workers`.
    """

    work: str
    folder: Path
    plain: Path
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Samples of a batch."""
        return BATCH[self.work]

    @property
    def workers(self) -> int:
        """Processes or threads beside the one that takes batches."""
        return self.options.get("workers", 0)


def photo_files(plain: Path) -> list[Path]:
    """Return the photos; the class of one is its number modulo `NUM_CLASSES`."""
    return sorted(plain.glob("*.jpg"))


NUM_CLASSES = 10


def tokens_of(plain: Path) -> np.ndarray:
    """Return all documents' tokens, back to back, int32."""
    return np.load(plain / "tokens.npy", mmap_mode="r")


def boxes_of(plain: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return all images' boxes back to back [total, 4] float32, and where each image's begin [N + 1]."""
    return np.load(plain / "boxes.npy"), np.load(plain / "offsets.npy")
