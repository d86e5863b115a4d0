"""Samples put together to a batch: one tensor for each column, whose bytes do not depend on the ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.transforms.transform_steps import Sample
from shardline_io.column_names import LENGTHS, MEAN_COUNT, PRESENT, WEIGHTS

# (features, labels) and weights if any, of a table; of other columns a tensor, or a list, by name
NamedBatch = dict[str, Any]
Batch = tuple[torch.Tensor, ...] | NamedBatch
_TABLE = {"features", "labels"}


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a rank knows of a batch beside its own samples.

    Attributes:
        longest: by varying column, the most values of a sample of the global batch, as stored.
        lengths: by varying column, the numbers of values of this rank's samples, as stored.
        mean_counts: by column, what the batch has as `{name}.mean_count`, see `global_batch.Counted`.
    """

    longest: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    mean_counts: Mapping[str, float] = field(default_factory=dict)


# Takes the samples and `Around.longest`; its result is the batch
Function = Callable[[Sequence[Sample], Mapping[str, int]], Any]


class Collate:
    """Makes a batch of samples.

    A column whose values are of one shape gives a tensor [B, *shape]. A varying one is filled up
    with zeros to `lengths` where it stands there, else to the longest sample of the global batch,
    beside `{name}.lengths` [B] int64; or it is a nested tensor of jagged layout. What is counted has
    `{name}.mean_count` beside it, a float32 scalar.

    Args:
        columns: of the dataset; a transform may have changed values, or added others.
        mode: `pad`, or `nested`.
        lengths: by column, what samples are filled up to.
        multiple: of which each other length is one.
        function: takes the place of all this.
    """

    def __init__(
        self, columns: Mapping[str, Column], *, mode: Literal["pad", "nested"] = "pad",
        lengths: Mapping[str, int] | None = None, multiple: int = 1, function: Function | None = None,
    ) -> None:  # fmt: skip
        self._columns, self._mode, self.function = columns, mode, function
        self._lengths, self._multiple = dict(lengths or {}), multiple

    def __call__(
        self, samples: Sequence[Sample], around: Around, weights: np.ndarray | None = None
    ) -> Any:
        """Return the batch of some samples.

        Args:
            weights: [B] float32, of a batch that may be filled up.

        Raises:
            DataError: samples differ in columns or shapes; the message names the column.
        """
        if self.function:
            return self.function(samples, around.longest)
        for sample in samples:
            if differing := sample.keys() ^ samples[0].keys():
                raise DataError(
                    f"only some samples of a batch have the column {min(differing)}; let the transform give the same "
                    "columns for each sample"
                )
        batch: NamedBatch = {}
        for name in samples[0]:
            batch |= self._column(name, [sample[name] for sample in samples], around)
        if weights is not None:
            batch[WEIGHTS] = torch.from_numpy(weights)
        return finished(batch, around.mean_counts)

    def whole(self, columns: Mapping[str, np.ndarray], weights: np.ndarray | None = None) -> Batch:
        """Return the batch of columns [B, *shape] that need no look at single samples."""
        batch: NamedBatch = {n: torch.from_numpy(values) for n, values in columns.items()}
        if weights is not None:
            batch[WEIGHTS] = torch.from_numpy(weights)
        return finished(batch)

    def _column(self, name: str, values: list[Any], around: Around) -> NamedBatch:
        column = self._columns.get(name)
        found: NamedBatch = {}
        if column and column.optional:
            present = [value is not None for value in values]
            found[name + PRESENT] = torch.tensor(present)
            if not all(present):
                empty = _empty(column, next((v for v in values if v is not None), None))
                values = [empty if value is None else value for value in values]
        if isinstance(values[0], str | bytes):
            return {name: values, **found}
        arrays = [np.asarray(value) for value in values]
        # bytes and texts of many lengths are of one shape where a transform has made arrays of them
        varies = column is not None and column.varies and column.kind == "array"
        varies = varies or name in self._lengths
        if varies and arrays[0].ndim:
            return self._varying(name, arrays, around) | found
        try:
            return {name: torch.from_numpy(np.stack(arrays)), **found}
        except (ValueError, TypeError) as error:
            shapes = " and ".join(dict.fromkeys(str(list(a.shape)) for a in arrays))
            raise DataError(
                f"column {name} has samples of shape {shapes} in one batch, expected one shape ({error}); let the "
                f"transform bring them to one, or give data.collate a length for {name}"
            ) from None

    def _varying(self, name: str, arrays: list[np.ndarray], around: Around) -> NamedBatch:
        lengths = [len(array) for array in arrays]
        if self._mode == "nested":
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            return {name: torch.nested.nested_tensor(tensors, layout=torch.jagged)}
        length = self._lengths.get(name)
        if length is None and list(around.lengths.get(name, ())) != lengths:
            raise DataError(
                f"column {name} has other lengths behind the transform than it is stored with, so that no rank knows "
                f"the longest of the global batch; give data.collate a length for {name}"
            )
        if length is None:
            length = -(-around.longest[name] // self._multiple) * self._multiple
        if max(lengths) > length:
            raise DataError(
                f"column {name} has a sample of {max(lengths):,} values, expected at most {length:,}, its length in "
                "data.collate; raise it, or let a transform cut the sample"
            )
        return {name: pad(arrays, length), name + LENGTHS: torch.tensor(lengths)}


def _empty(column: Column, like: Any) -> Any:
    """Return what stands for a value that is missing."""
    if column.kind != "array":
        return "" if column.kind == "text" else b""
    if like is not None:
        shape = np.asarray(like).shape
        return np.zeros((0, *shape[1:]) if column.varies else shape, np.asarray(like).dtype)
    return np.zeros((0, *column.shape) if column.varies else column.shape, column.dtype)


def pad(values: Sequence[np.ndarray], length: int) -> torch.Tensor:
    """Return arrays of different lengths as one tensor [n, length, *shape], with zeros behind each."""
    padded = np.zeros((len(values), length, *values[0].shape[1:]), values[0].dtype)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(padded)


def finished(batch: NamedBatch, mean_counts: Mapping[str, float] | None = None) -> Batch:
    """Return a batch as the model is given it.

    That of features and labels alone is a table's, (features, labels[, weights]). Any other has
    `{name}.mean_count` of the columns that it holds.
    """
    if batch.keys() - {WEIGHTS} == _TABLE:
        return (
            batch["features"],
            batch["labels"],
            *([batch[WEIGHTS]] if WEIGHTS in batch else []),
        )
    counts = {name: of for name, of in (mean_counts or {}).items() if name in batch}
    return batch | {
        name + MEAN_COUNT: torch.tensor(of, dtype=torch.float32) for name, of in counts.items()
    }
