"""Which classes a classifier takes for which, counted in memory that does not grow with the rows."""

from collections.abc import Sequence

import numpy as np

from shardline.records.evaluations import ConfusionResult, HardClass, Mistake

# Recorded as a whole table up to here: 10,000 cells, about 110 KB of JSON.
MAX_TABLE_CLASSES = 100
MAX_PAIRS = 1 << 20  # 16 MB; 1,024 classes cannot have more
MAX_LISTED = 100


class Confusion:
    """The confusion matrix of rows that are added block by block.

    Only pairs of true and predicted class that occur are held. Where more than `max_pairs`
    mistakes of different kinds occur, the rarest pairs are dropped and the counts of all others
    lowered by the same number, as in Misra and Gries, "Finding repeated elements", Science of
    Computer Programming 2, 1982: no count is ever too high, and none is lower than the true one by
    more than the number of mistakes / (`max_pairs` + 1). Rows per class are always exact.

    Args:
        num_classes: Number of classes.
        max_pairs: Pairs of different classes that are held between two blocks.

    Attributes:
        rows: Rows of each true class [C].
        right: Those of them that were predicted so [C].
        max_undercount: By how much the count of a mistake may be too low.
    """

    def __init__(self, num_classes: int, max_pairs: int = MAX_PAIRS) -> None:
        self._num_classes, self._max_pairs = num_classes, max_pairs
        self.rows: np.ndarray = np.zeros(num_classes, np.int64)
        self.right: np.ndarray = np.zeros(num_classes, np.int64)
        self._pairs = self._counts = np.empty(0, np.int64)
        self.max_undercount = 0

    @property
    def num_right(self) -> int:
        """Rows of which the predicted class is the true one."""
        return int(self.right.sum())

    def add(self, label: np.ndarray, predicted: np.ndarray) -> None:
        """Count a block of rows.

        Args:
            label: True class of each row [n] int64, as a place in the classes.
            predicted: Predicted class of each row [n] int64.
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
        """Return what an evaluation records.

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
        """Return the classes of the lowest accuracy, of equal ones those of most samples first."""
        seen = np.flatnonzero(self.rows > self.right)
        accuracy = self.right[seen] / self.rows[seen]
        return seen[np.lexsort((-self.rows[seen], accuracy))][:MAX_LISTED]
