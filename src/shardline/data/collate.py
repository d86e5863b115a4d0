"""Collation of samples into batches whose bytes do not depend on the number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.transforms.transform_steps import Sample
from shardline_io.column_names import LENGTHS, MEAN_COUNT, PRESENT, WEIGHTS

# a table's batch is (features, labels[, weights]); other batches have a tensor or a list by column,
# or are tuples of these with `data.collate: tuple`
NamedBatch = dict[str, Any]
Mode = Literal["pad", "nested", "tuple"]
Batch = tuple[Any, ...] | NamedBatch
_TABLE = {"features", "labels"}


class ColumnTuple(tuple[Any, ...]):
    """Columns of a batch, in order, for models that unpack their batch; a copy on a device has no names.

    Args:
        named: the batch by column.
    """

    named: NamedBatch

    def __new__(cls, named: Any) -> "ColumnTuple":  # noqa: D102
        if not isinstance(named, dict):  # when Lightning moves the batch
            return super().__new__(cls, named)
        made = super().__new__(cls, named.values())
        made.named = named
        return made


@dataclass(frozen=True, kw_only=True)
class Around:
    """Lengths in a batch and its global batch, before transforms.

    Attributes:
        longest: number of values of the longest sample in the global batch, by varying column.
        lengths: number of values of each of this rank's samples, by varying column.
        mean_counts: `{name}.mean_count` by column, see `global_batch.Counted`.
    """

    longest: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    mean_counts: Mapping[str, float] = field(default_factory=dict)


# called with the samples and `Around.longest`; returns the batch
Function = Callable[[Sequence[Sample], Mapping[str, int]], Any]


class Collate:
    """Collation of samples into a batch.

    A column of one shape becomes a tensor [B, *shape]. A varying column becomes a nested tensor of
    jagged layout, or is padded with zeros to its entry in `lengths`, else to the longest sample of
    the global batch. A padded column has `{name}.lengths` [B] int64 next to it, and a counted column
    `{name}.mean_count`, a float32 scalar.

    Args:
        columns: columns before transforms, which may change values or add columns.
        mode: whether varying columns are padded (`pad`) or become nested tensors (`nested`), or the batch is a
            tuple of the columns in order (`tuple`), as a torch `DataLoader` makes of samples that are tuples.
        lengths: length to pad to, by column.
        multiple: other columns are padded to a multiple of this length.
        function: function of the user that makes the batch instead.
    """

    def __init__(
        self, columns: Mapping[str, Column], *, mode: Mode = "pad",
        lengths: Mapping[str, int] | None = None, multiple: int = 1, function: Function | None = None,
    ) -> None:  # fmt: skip
        self._columns, self._mode, self.function = columns, mode, function
        self._lengths, self._multiple = dict(lengths or {}), multiple

    def __call__(
        self, samples: Sequence[Sample], around: Around, weights: np.ndarray | None = None
    ) -> Any:
        """Collate samples into a batch.

        Args:
            around: lengths in the global batch.
            weights: weight of each sample [B] float32, if batches may be padded.

        Raises:
            DataError: samples differ in columns or shapes, or a tuple cannot contain a column; names the column.
        """
        if self.function:
            return self.function(samples, around.longest)
        for sample in samples:
            if differing := sample.keys() ^ samples[0].keys():
                raise DataError(
                    f"only some samples of a batch have the column {min(differing)}, expected the same columns in all; "
                    "let the transform return the same columns for each sample"
                )
        batch: NamedBatch = {}
        for name in samples[0]:
            batch |= self._column(name, [sample[name] for sample in samples], around)
        if weights is not None:
            batch[WEIGHTS] = torch.from_numpy(weights)
        return self._finished(batch, around.mean_counts)

    def whole(
        self, columns: Mapping[str, np.ndarray], weights: np.ndarray | None = None,
        mean_counts: Mapping[str, float] | None = None,
    ) -> Batch:  # fmt: skip
        """Return the batch of complete columns [B, *shape]; `Around` describes `mean_counts`."""
        batch: NamedBatch = {n: torch.from_numpy(values) for n, values in columns.items()}
        if weights is not None:
            batch[WEIGHTS] = torch.from_numpy(weights)
        return self._finished(batch, mean_counts)

    def _finished(self, batch: NamedBatch, mean_counts: Mapping[str, float] | None) -> Batch:
        if self._mode != "tuple":
            return finished(batch, mean_counts)
        if batch.keys() - {WEIGHTS} == _TABLE:
            return finished(batch)
        lost = [name + MEAN_COUNT for name in mean_counts or () if name in batch]
        lost += [name for name in batch if name.endswith((LENGTHS, PRESENT))]
        if lost:
            raise DataError(
                f"data.collate=tuple would leave {', '.join(lost)} out of batches, expected columns of one shape "
                "without gaps and weights; set data.collate to pad, whose batch is a dict"
            )
        return ColumnTuple(batch)

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
        # a transform has converted bytes and text to arrays, which may have one shape
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
                f"transform return one shape, or set data.collate.lengths.{name}"
            ) from None

    def _varying(self, name: str, arrays: list[np.ndarray], around: Around) -> NamedBatch:
        lengths = [len(array) for array in arrays]
        if self._mode == "nested":
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            return {name: torch.nested.nested_tensor(tensors, layout=torch.jagged)}
        length = self._lengths.get(name)
        if length is None and list(around.lengths.get(name, ())) != lengths:
            raise DataError(
                f"the transform changes the length of column {name}, expected the stored lengths, by which ranks know "
                f"the longest sample of the global batch; set data.collate.lengths.{name}"
            )
        if length is None:
            length = -(-around.longest[name] // self._multiple) * self._multiple
        if max(lengths) > length:
            raise DataError(
                f"column {name} has a sample of {max(lengths):,} values, expected at most {length:,}, its length in "
                "data.collate.lengths; raise the length, or let a transform cut the sample"
            )
        return {name: pad(arrays, length), name + LENGTHS: torch.tensor(lengths)}


def _empty(column: Column, like: Any) -> Any:
    """Return the placeholder for a missing value."""
    if column.kind != "array":
        return "" if column.kind == "text" else b""
    if like is not None:
        shape = np.asarray(like).shape
        return np.zeros((0, *shape[1:]) if column.varies else shape, np.asarray(like).dtype)
    return np.zeros((0, *column.shape) if column.varies else column.shape, column.dtype)


def pad(values: Sequence[np.ndarray], length: int) -> torch.Tensor:
    """Return arrays of different lengths as one tensor [n, length, *shape], padded with zeros."""
    padded = np.zeros((len(values), length, *values[0].shape[1:]), values[0].dtype)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(padded)


def finished(batch: NamedBatch, mean_counts: Mapping[str, float] | None = None) -> Batch:
    """Return a batch in the form that the model gets.

    A batch of features and labels alone becomes (features, labels[, weights]). Any other batch gets
    `{name}.mean_count` for its counted columns.
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
