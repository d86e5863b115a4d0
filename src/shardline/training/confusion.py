"""The confusion matrix of a classifier, counted in memory that does not grow with the rows."""

from collections.abc import Sequence

import numpy as np

from shardline.records.evaluations import ConfusionResult, HardClass, Mistake

# The largest matrix that is recorded whole: 10,000 cells, about 110 KB of JSON.
MAX_TABLE_CLASSES = 100
MAX_PAIRS = 1 << 20  # 16 MB; 1,024 classes cannot have more
MAX_LISTED = 100


class Confusion:
    """A confusion matrix, to which rows are added block by block.

    Memory contains only pairs of true and predicted class that occur. If there are more than
    `max_pairs` kinds of mistakes, the rarest pairs are dropped, and all other counts are lowered by
    the same number (Misra and Gries, "Finding repeated elements", Science of Computer Programming
    2, 1982). No count is too high. A count is too low by at most the number of mistakes /
    (`max_pairs` + 1). Rows per class are always exact.

    Args:
        num_classes: Number of classes.
        max_pairs: Number of pairs of different classes that are kept between two blocks.

    Attributes:
        rows: Number of rows of each true class [C].
        right: Number of correctly predicted rows of each true class [C].
        max_undercount: Number by which the count of a mistake may be too low, at most.
    """

    def __init__(self, num_classes: int, max_pairs: int = MAX_PAIRS) -> None:
        self._num_classes, self._max_pairs = num_classes, max_pairs
        self.rows: np.ndarray = np.zeros(num_classes, np.int64)
        self.right: np.ndarray = np.zeros(num_classes, np.int64)
        self._pairs = self._counts = np.empty(0, np.int64)
        self.max_undercount = 0

    @property
    def num_right(self) -> int:
        """Number of correctly predicted rows."""
        return int(self.right.sum())

    def add(self, label: np.ndarray, predicted: np.ndarray) -> None:
        """Count a block of rows.

        Args:
            label: Index of each row's true class [n] int64.
            predicted: Index of each row's predicted class [n] int64.
        """
        is_right = label == predicted
        self.rows += np.bincount(label, minlength=self._num_classes)
        self.right += np.bincount(label[is_right], minlength=self._num_classes)
        mistakes = label[~is_right] * self._num_classes + predicted[~is_right]
        if len(mistakes):
            self._merge(*np.unique(mistakes, return_counts=True))

    def _merge(self, pairs: np.ndarray, counts: np.ndarray) -> None:
        pairs, counts = np.append(self._pairs, pairs), np.append(self._counts, counts)
        order = np.argsort(pairs, kind="stable")  # merges two sorted runs: linear
        pairs, counts = pairs[order], counts[order]
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        self._pairs, self._counts = pairs[first], np.add.reduceat(counts, first)
        excess = len(self._pairs) - self._max_pairs
        if excess > 0:
            lowered = np.partition(self._counts, excess - 1)[excess - 1]
            kept = self._counts > lowered
            self._pairs, self._counts = self._pairs[kept], self._counts[kept] - lowered
            self.max_undercount += int(lowered)

    def describe(self, classes: Sequence[str]) -> ConfusionResult:
        """Return the record of the matrix: the whole table, or the most frequent mistakes.

        Args:
            classes: Names of the classes.
        """
        if self._num_classes <= MAX_TABLE_CLASSES:
            return ConfusionResult(classes=list(classes), counts=self.table().tolist())
        truth, predicted = self._places()
        most = np.argsort(-self._counts, kind="stable")[:MAX_LISTED]
        return ConfusionResult(
            num_classes=self._num_classes,
            num_mistakes=int(self.rows.sum()) - self.num_right,
            max_undercount=self.max_undercount,
            mistakes=[
                Mistake(
                    truth=classes[truth[place]],
                    predicted=classes[predicted[place]],
                    count=int(self._counts[place]),
                )
                for place in most
            ],
            hardest=[
                HardClass(
                    class_=classes[place],
                    samples=int(self.rows[place]),
                    right=int(self.right[place]),
                )
                for place in self._hardest()
            ],
        )

    def table(self) -> np.ndarray:
        """Return the whole matrix [C, C]; rows: true class."""
        table = np.diag(self.right)
        table[self._places()] = self._counts
        return table

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the true and the predicted class of each pair."""
        return np.divmod(self._pairs, self._num_classes)

    def _hardest(self) -> np.ndarray:
        """Return the classes with the lowest accuracy first; at equal accuracy, with most rows first."""
        seen = np.flatnonzero(self.rows > self.right)
        accuracy = self.right[seen] / self.rows[seen]
        return seen[np.lexsort((-self.rows[seen], accuracy))][:MAX_LISTED]
