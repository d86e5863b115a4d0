"""The interface between where rows come from and the shards they are cut into."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What one row looks like.

    Attributes:
        feature_shape: shape of a row's features, without the batch dimension.
        feature_dtype: NumPy name of the features' type, as stored.
        task: `classification` (int64 labels 0..C-1) or `regression` (float32 labels).
        classes: class names, in label order; empty for regression.
    """

    feature_shape: tuple[int, ...]
    feature_dtype: str = "float32"
    task: Literal["classification", "regression"] = "classification"
    classes: tuple[str, ...] = ()

    @property
    def label_dtype(self) -> str:
        """NumPy name of the labels' type."""
        return "int64" if self.task == "classification" else "float32"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A block of N rows.

    Attributes:
        ids: row ids [N] int64, unique in the dataset; they decide a row's split.
        features: [N, *feature_shape].
        labels: [N].
        splits: each row's split [N] int64, as an index into SPLITS, where the
            source knows it (a column, the file); None leaves it to the id's hash.
    """

    ids: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    splits: np.ndarray | None = None


class Source(ABC):
    """A source of rows, cut into shards that can be read in any order.

    A subclass is named by import path in `datasets.<name>.source.type`; its
    `source.options` are passed to the constructor beside the arguments below.

    Args:
        num_shards: shards that the dataset is cut into.
        files: the resolved `source.files`, sorted.
    """

    def __init__(self, *, num_shards: int, files: Sequence[Path] = (), **options: Any) -> None:
        if options:
            names = ", ".join(options)
            raise TypeError(f"{type(self).__name__} takes no option named {names}")
        self.num_shards = num_shards
        self.files = tuple(files)

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """What one row looks like."""

    @abstractmethod
    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of one shard, in blocks that fit in memory.

        The same shard gives the same rows, whoever asks and in whatever order.
        """

    @property
    def reference(self) -> dict[str, Any] | None:
        """What a perfect model would reach, where that is known."""
        return None


def shard_range(num_rows: int, shard: int, num_shards: int) -> range:
    """Return the rows of one shard when a table is cut into almost equal pieces."""
    return range(num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards)
