"""Score the outputs of a model on a split, in memory that does not grow with the split.

The outputs of a batch are reduced at once to a few numbers per row. Rows are summed in float64, in
blocks of fixed size by their place in the split, and the sums are added in block order. So a metric
depends neither on the batch size nor on which rank evaluates a block.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional

from shardline.records.datasets import DatasetSchema
from shardline.records.evaluations import Evaluated, HeadlineValue
from shardline.training.confusion import Confusion
from shardline.training.diagnostics import Bins
from shardline.training.row_scores import Columns, check_finite, check_shape
from shardline.training.scoring_labels import Flags, Regression

# From 32,768 values on, torch splits a sum among threads, and their number changes the last bits.
BLOCK_ROWS = 1 << 14
_CHUNK_VALUES = 1 << 18  # 2 MB of float64, which fit into a processor's cache


def make_task(
    schema: DatasetSchema, num_rows: int, run: str, *, is_shipped: bool = False
) -> "Task":
    """Make the task that scores a model's outputs on a split of `num_rows` rows.

    Args:
        run: Name of the run, for errors.
        is_shipped: Whether the model is a `Classifier`; see `Regression`.
    """
    if schema.task == "classification":
        return Classification(schema.classes, run)
    targets = schema.targets or ()
    if schema.task == "multilabel":
        return Flags(targets, run)
    return Regression(num_rows, run, targets, is_shipped=is_shipped)


def blocks(batches: Iterable[Columns], num_rows: int = BLOCK_ROWS) -> Iterator[Columns]:
    """Cut the rows of batches of any size into blocks of one size.

    Args:
        batches: Columns of each batch, in the split's order.
        num_rows: Rows of every block but the last.

    Yields:
        Columns of a block, with each row's `place` in the split.
    """
    waiting: list[Columns] = []
    start = held = 0
    for batch in batches:
        waiting.append(batch)
        held += len(batch["label"])
        if held >= num_rows:
            joined, end = _join(waiting), held - held % num_rows
            for first in range(0, end, num_rows):
                yield _placed(_cut(joined, first, first + num_rows), start + first)
            waiting, start, held = [_cut(joined, end, held)], start + end, held - end
    if held:
        yield _placed(_join(waiting), start)


def _join(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cut(columns: Columns, first: int, last: int) -> Columns:
    return {name: column[first:last] for name, column in columns.items()}


def _placed(columns: Columns, start: int) -> Columns:
    return {"place": np.arange(start, start + len(columns["label"])), **columns}


class Classification:
    """Accuracy, cross-entropy, confusion and calibration of logits [B, C].

    Args:
        classes: Names of the classes.
        run: Name of the run, for errors.
    """

    def __init__(self, classes: Sequence[str], run: str) -> None:
        self._classes, self._run = classes, run
        self._confusion, self._bins = Confusion(len(classes)), Bins()
        self._loss, self._num_rows = 0.0, 0

    def score(self, outputs: torch.Tensor, label: torch.Tensor) -> Columns:
        """Return the scores of a batch by row.

        Args:
            outputs: Logits [B, C] float32.
            label: Place of the true class [B] int64.

        Returns:
            `label`, `predicted`, `confidence` and `loss` per row [B].

        Raises:
            DataError: the outputs have another shape or are not finite.
        """
        check_shape(self._run, outputs, (len(label), len(self._classes)), "logits ")
        check_finite(self._run, outputs)
        # few rows at a time: float64 copies of all logits would be several times the batch
        num_chunks = min(len(label), -(-outputs.numel() // _CHUNK_VALUES))
        chunks = zip(outputs.tensor_split(num_chunks), label.tensor_split(num_chunks), strict=True)
        return _join([_score_logits(*chunk) for chunk in chunks])

    def add(self, block: Columns) -> None:
        """Add a block's rows to the sums."""
        label, predicted = block["label"], block["predicted"]
        self._confusion.add(label, predicted)
        self._bins.add(block["confidence"], label == predicted)
        self._loss += _sum_of_losses(block["loss"])
        self._num_rows += len(label)

    def result(self) -> Evaluated:
        """Return accuracy and loss, the confusion and the calibration."""
        accuracy = self._confusion.num_right / self._num_rows
        return Evaluated(
            metrics={"accuracy": accuracy, "loss": self._loss / self._num_rows},
            headline=HeadlineValue(metric="accuracy", value=accuracy, mode="max"),
            confusion=self._confusion.describe(self._classes),
            calibration=self._bins.describe(),
        )


def _score_logits(logits: torch.Tensor, label: torch.Tensor) -> Columns:
    predicted, logits = logits.argmax(dim=1), logits.double()
    confidence = (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()
    loss = functional.cross_entropy(logits, label, reduction="none")
    columns = {"label": label, "predicted": predicted, "confidence": confidence, "loss": loss}
    return {name: column.numpy() for name, column in columns.items()}


def _sum_of_losses(loss: np.ndarray) -> float:
    """Sum losses in the order of torch's cross-entropy, since another order changes the last bits."""
    column = torch.from_numpy(loss).unsqueeze(1)
    rows = torch.zeros(len(loss), dtype=torch.int64)
    return -float(functional.nll_loss(column, rows, reduction="sum"))


Task = Classification | Flags | Regression
