"""A residual network for tables of numbers and categories."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shardline.core.errors import ConfigError, DataError
from shardline.data.columns import Column
from shardline.training.models.classifier_base import Classifier, Task, num_outputs
from shardline.training.models.model_inputs import SampleColumns

CATEGORIES = "categories"
_MOST_DIMENSIONS = 32


class Tabular(Classifier):
    """A residual network like the ResNet for tables of Gorishniy et al. 2021, as an ensemble that shares weights.

    Numbers and the embeddings of categories pass a linear layer, then blocks of
    `x + dropout(linear(dropout(relu(linear(norm(x))))))` ("Revisiting Deep Learning Models for Tabular
    Data", arXiv:2106.11959). The norm is LayerNorm instead of the paper's BatchNorm, so that a row's
    output depends neither on its batch nor on the number of ranks. Each member of the ensemble scales
    the inputs by vectors of its own and has a last layer of its own, as TabM-mini in Gorishniy et al.
    2024, arXiv:2410.24210. Members are trained by their own losses; the output is their mean.

    Args:
        num_classes: Number of classes, from the dataset.
        feature_shape: Shape of a row's numbers, from the dataset.
        sample_columns: Columns of the samples, from dataset and settings.
        category_sizes: Number of values of each column of `categories`, from the dataset.
        width: Width of the residual stream.
        blocks: Number of residual blocks.
        factor: Width of a block's hidden layer, as a multiple of `width`.
        dropout: Probability of dropping a hidden unit of a block in training.
        members: Number of members of the ensemble.
        task: Task of the dataset.
        num_targets: Numbers or flags in a row's labels, from the dataset.
        loss: Loss of numbers, see `Classifier`.
        scale_targets: Whether outputs are scaled by the labels' mean and deviation, see `Classifier`.

    Raises:
        ConfigError: The dataset has no labels that the model predicts, neither numbers nor categories, or
            categories of unknown size.
    """

    def __init__(
        self, num_classes: int, feature_shape: tuple[int, ...] | None = None,
        sample_columns: SampleColumns = None, *, category_sizes: Sequence[int] = (), width: int = 64,
        blocks: int = 2, factor: float = 2.0, dropout: float = 0.1, members: int = 8,
        task: Task = "classification", num_targets: int = 0, loss: str | None = None, scale_targets: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task=task, num_targets=num_targets, loss=loss, scale_targets=scale_targets)
        outputs = num_outputs("tabular", num_classes, num_targets)
        self.category_sizes = tuple(map(int, category_sizes))
        _check_categories(self.category_sizes, sample_columns)
        self.num_numbers = _num_numbers(feature_shape, sample_columns)
        dimensions = [min(_MOST_DIMENSIONS, 1 + size // 2) for size in self.category_sizes]
        num_inputs = self.num_numbers + sum(dimensions)
        if not num_inputs:
            raise ConfigError(
                "model=tabular needs a column `features` of numbers or a column `categories`, but the samples have "
                f"{', '.join(sample_columns or ()) or 'neither'}; rename the columns in the source"
            )
        pairs = zip(self.category_sizes, dimensions, strict=True)
        self.embeddings = nn.ModuleList([nn.Embedding(*pair) for pair in pairs])
        signs = torch.randint(0, 2, (members, num_inputs)) * 2.0 - 1.0
        self.scales = nn.Parameter(signs if members > 1 else torch.ones(1, num_inputs))
        self.first = nn.Linear(num_inputs, width)
        hidden = round(width * factor)
        self.blocks = nn.ModuleList([_block(width, hidden, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Parameter(torch.empty(members, width, outputs).uniform_(-1, 1) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(members, outputs))

    def input_columns(self, batch: Mapping[str, Any]) -> tuple[str, ...]:
        """Return `features`, `categories` or both, as the model has them."""
        found = [self.column] if self.num_numbers else []
        return (*found, *([CATEGORIES] if self.category_sizes else []))

    def forward(self, *inputs: torch.Tensor, by_member: bool = False) -> torch.Tensor:
        """Return logits [B, C], or numbers [B, T]: those of the members' mean.

        Args:
            inputs: Numbers [B, *feature_shape], then categories [B, columns] int64, as far as the
                dataset has them.
            by_member: Return the outputs of each member instead [B, members, C or T].
        """
        found = self._members(*inputs)
        if by_member:
            return self.scaled_back(found)
        if self.label_task == "classification":  # the mean of probabilities
            return found.log_softmax(dim=2).logsumexp(dim=1) - math.log(found.shape[1])
        return self.scaled_back(found.mean(dim=1))

    def _members(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of each member [B, members, C or T]."""
        numbers = [inputs[0].flatten(1)] if self.num_numbers else []
        found = self._embedded(inputs[-1]) if self.category_sizes else []
        stream = self.first(torch.cat([*numbers, *found], dim=1)[:, None] * self.scales)
        for block in self.blocks:
            stream = stream + block(stream)
        stream = self.norm(stream).relu()
        return torch.einsum("bkw,kwo->bko", stream, self.head) + self.bias

    def _trained_losses(
        self, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean of the members' losses for each row [B]."""
        outputs = self(*inputs, by_member=True)
        size = outputs.shape[1]
        losses = self._row_losses(outputs.flatten(0, 1), labels.repeat_interleave(size, dim=0))
        return losses.reshape(-1, size).mean(dim=1)

    def _embedded(self, categories: torch.Tensor) -> list[torch.Tensor]:
        if not torch.compiler.is_exporting():  # a traced program cannot raise errors about data
            sizes = torch.tensor(self.category_sizes, device=categories.device)
            bad = (categories < 0) | (categories >= sizes)
            if (
                bad.any()
            ):  # worth the wait: on a GPU the embedding's own check would kill the process
                row, place = bad.nonzero()[0].tolist()
                raise DataError(
                    f"column {place} of categories has the value {int(categories[row, place])}, expected 0 to "
                    f"{self.category_sizes[place] - 1:,}; set model_args.category_sizes to the numbers of values"
                )
        return [
            embedding(categories[:, place].long())
            for place, embedding in enumerate(self.embeddings)
        ]


def _block(width: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width),
        nn.Dropout(dropout),
    )  # fmt: skip


def _num_numbers(feature_shape: tuple[int, ...] | None, columns: SampleColumns) -> int:
    """Return how many numbers a row has."""
    if feature_shape is not None:
        return math.prod(feature_shape)
    if columns is None:
        raise ConfigError(
            "model=tabular needs the shape of the features, which is unknown if your own code makes samples or "
            "batches; set model_args.feature_shape"
        )
    written = columns.get(Classifier.column)
    return math.prod(Column.parse(Classifier.column, written).shape) if written else 0


def _check_categories(sizes: Sequence[int], columns: SampleColumns) -> None:
    written = (columns or {}).get(CATEGORIES)
    if written is None:
        return
    column = Column.parse(CATEGORIES, written)
    is_whole = column.dtype.removeprefix("u").startswith("int") and column.kind == "array"
    if not is_whole or column.varies or column.optional or column.shape != (len(sizes),):
        raise ConfigError(
            f"model=tabular has {len(sizes)} category_sizes for the column categories, which is {column}, expected "
            "integers such as int64[2] with one size per number; set model_args.category_sizes to the number of values "
            "of each, or correct the column"
        )
