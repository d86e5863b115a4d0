"""Score models of numbers and of flags, where a row may have several."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from shardline.data.moments import Moments, RunningMoments
from shardline.records.evaluations import Evaluated, HeadlineValue
from shardline.training.diagnostics import MAX_POINTS, Spread, residuals
from shardline.training.row_scores import Columns, check_finite, check_shape, sum_of

MAX_NAMED = 50  # metrics are listed for each number or flag up to this many
# a bin of logits is 1/128 wide, so that scores in it count as equal
_BINS, _PER_UNIT = 4096, 128


class Regression:
    """Errors of values [B], [B, 1] or, with several targets, [B, T].

    Args:
        num_rows: Rows of the split.
        run: Name of the run, for errors.
        targets: Names of the numbers in a row's labels; empty for one number [B].
        is_shipped: Whether to add RMSE and R2, which evaluations of own models of one number never had.
    """

    def __init__(
        self, num_rows: int, run: str, targets: Sequence[str] = (), *, is_shipped: bool = False
    ) -> None:
        self._run, self._targets, self._has_more = run, tuple(targets), is_shipped or bool(targets)
        self._points = Spread(num_rows, MAX_POINTS)
        self._squares, self._distances = np.zeros((2, max(1, len(targets))))
        self._labels = RunningMoments().moments()
        self._num_rows = 0

    def score(self, outputs: torch.Tensor, label: torch.Tensor) -> Columns:
        """Return the scores of a batch by row.

        Args:
            outputs: Values [B], [B, 1] or [B, T] float32.
            label: True values [B] or [B, T] float32.

        Returns:
            `label`, `predicted` and their `error`, in the shape of the labels, and the mean squared
            error of each row [B] as `loss`.

        Raises:
            DataError: the outputs have another shape or are not finite.
        """
        is_flat = not self._targets and outputs.ndim == 2 and outputs.shape[1] == 1
        values = outputs.squeeze(1) if is_flat else outputs
        check_shape(self._run, values, tuple(label.shape))
        check_finite(self._run, values)
        error = (values - label).double()
        loss = (error**2).mean(dim=1) if self._targets else error**2
        columns = {"label": label, "predicted": values, "error": error, "loss": loss}
        # copied: a view would keep the whole output of the model in memory
        return {name: column.numpy().copy() for name, column in columns.items()}

    def add(self, block: Columns) -> None:
        """Add a block's rows to the sums."""
        errors = block["error"].reshape(len(block["loss"]), -1)
        for place, column in enumerate(np.ascontiguousarray(errors.T)):
            self._squares[place] += sum_of(column**2)
            self._distances[place] += sum_of(np.abs(column))
        self._num_rows += len(errors)
        self._points.add(block)
        if self._has_more:
            labels = block["label"].reshape(len(errors), -1)
            self._labels = self._labels.merge(Moments.exactly(labels))

    def result(self) -> Evaluated:
        """Return the errors, their means over targets, and some predicted values beside the true ones."""
        found = self._by_target()
        means: dict[str, float | None] = {name: _mean(of) for name, of in found.items()}
        named = {
            f"{name}/{target}": value
            for name in ("mae", "rmse", "r2")
            for target, value in zip(self._targets[:MAX_NAMED], found.get(name, ()), strict=False)
            if len(self._targets) > 1
        }
        by_r2 = len(self._targets) > 1 and means["r2"] is not None  # units may differ
        headline = HeadlineValue(metric="mse", value=means["mse"], mode="min")
        if by_r2:
            headline = HeadlineValue(metric="r2", value=means["r2"], mode="max")
        if len(self._targets) > 1:
            return Evaluated(metrics=means | named, headline=headline)
        rows = {name: of.reshape(-1) for name, of in self._points.rows.items()}
        return Evaluated(metrics=means, headline=headline, residuals=residuals(rows))

    def _by_target(self) -> dict[str, list[float | None]]:
        mse, mae = self._squares / self._num_rows, self._distances / self._num_rows
        found: dict[str, list[float | None]] = {"mse": mse.tolist(), "mae": mae.tolist()}
        if self._has_more:
            totals = self._labels.m2 / self._num_rows
            found["rmse"] = np.sqrt(mse).tolist()
            pairs = zip(mse.tolist(), totals.tolist(), strict=True)
            found["r2"] = [1 - error / total if total > 0 else None for error, total in pairs]
        return found


class Flags:
    """F1, average precision and area under the ROC curve of logits [B, T] of flags.

    Ranks and blocks count how many rows with and without a flag have a logit in each of 4,096 bins. So
    memory does not grow with the rows, and logits in one bin count as equal. A flag counts as predicted
    if its logit is above 0.

    Args:
        targets: Names of the flags.
        run: Name of the run, for errors.
    """

    def __init__(self, targets: Sequence[str], run: str) -> None:
        self._targets, self._run = tuple(targets), run
        self._counts = np.zeros((len(targets), 2, _BINS), np.int64)
        self._right = np.zeros((len(targets), 3), np.int64)  # true, false and missed flags
        self._loss, self._num_rows = 0.0, 0

    def score(self, outputs: torch.Tensor, label: torch.Tensor) -> Columns:
        """Return the scores of a batch by row.

        Args:
            outputs: Logits [B, T] float32.
            label: Whether a row has each flag [B, T], 0 or 1.

        Returns:
            `label`, `predicted` and `logit` [B, T], and the mean cross-entropy of each row as `loss` [B].

        Raises:
            DataError: the outputs have another shape or are not finite.
        """
        check_shape(self._run, outputs, (len(label), len(self._targets)), "logits ")
        check_finite(self._run, outputs)
        truth = label.double()
        loss = functional.binary_cross_entropy_with_logits(
            outputs.double(), truth, reduction="none"
        )
        columns = {"label": label > 0, "predicted": outputs > 0, "logit": outputs}
        columns["loss"] = loss.mean(dim=1)
        return {name: column.numpy().copy() for name, column in columns.items()}

    def add(self, block: Columns) -> None:
        """Add a block's rows to the counts."""
        label, predicted = block["label"].astype(bool), block["predicted"].astype(bool)
        both = [label & predicted, ~label & predicted, label & ~predicted]
        self._right += np.stack([one.sum(axis=0) for one in both], axis=1)
        bins = np.clip(np.floor(block["logit"] * _PER_UNIT) + _BINS // 2, 0, _BINS - 1)
        places = (2 * np.arange(len(self._targets)) + label) * _BINS + bins.astype(np.int64)
        found = np.bincount(places.ravel(), minlength=self._counts.size)
        self._counts += found.reshape(self._counts.shape)
        self._loss += sum_of(block["loss"])
        self._num_rows += len(label)

    def result(self) -> Evaluated:
        """Return loss, micro and macro F1, and the mean over flags of average precision and AUROC.

        A flag that no row or every row has counts in no mean of AUROC, and without rows in no mean of
        average precision.
        """
        f1 = [_f1(*of) for of in self._right.tolist()]
        precision, auroc = zip(*(_ranked(*of) for of in self._counts), strict=True)
        metrics: dict[str, float | None] = {
            "loss": self._loss / self._num_rows,
            "f1_micro": _f1(*self._right.sum(axis=0).tolist()),
            "f1_macro": _mean(f1),
            "map": _mean(precision),
            "auroc": _mean(auroc),
        }
        for name, values in (("f1", f1), ("ap", precision), ("auroc", auroc)):
            named = zip(self._targets[:MAX_NAMED], values, strict=False)
            metrics |= {f"{name}/{target}": value for target, value in named}
        headline = HeadlineValue(metric="f1_macro", value=metrics["f1_macro"], mode="max")
        return Evaluated(metrics=metrics, headline=headline)


def _f1(true: int, false: int, missed: int) -> float:
    return 2 * true / max(1, 2 * true + false + missed)


def _ranked(without: np.ndarray, having: np.ndarray) -> tuple[float | None, float | None]:
    """Return average precision and AUROC of a flag; None where undefined.

    Args:
        without: Rows without the flag by bin of logits, ascending [bins].
        having: Rows with the flag.
    """
    positive, negative = having[::-1], without[::-1]
    found, wrong = positive.cumsum(), negative.cumsum()
    if not found[-1]:
        return None, None
    precision = found / np.maximum(found + wrong, 1)
    average = float((positive * precision).sum() / found[-1])
    if not wrong[-1]:
        return average, None
    above = found - positive / 2  # rows of one bin count half
    return average, float((negative * above).sum() / (found[-1] * wrong[-1]))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


class WeightedMeans:
    """Means of the rows' scores by the rows' weights, as `weighted_loss` and the like.

    Args:
        task: Task of the dataset.
    """

    def __init__(self, task: str) -> None:
        names = {"classification": ("loss", "accuracy"), "regression": ("mse", "mae")}
        self._names = names.get(task, ("loss",))
        self._sums, self._weight = np.zeros(len(self._names)), 0.0

    def add(self, block: Columns) -> None:
        """Add a block's rows to the sums, if rows have weights."""
        weight = block.get("weight")
        if weight is None:
            return
        values = {"loss": block["loss"], "mse": block["loss"]}
        if "accuracy" in self._names:
            values["accuracy"] = (block["label"] == block["predicted"]).astype(np.float64)
        if "mae" in self._names:
            values["mae"] = np.abs(block["error"]).reshape(len(weight), -1).mean(axis=1)
        self._sums += [sum_of(values[name] * weight) for name in self._names]
        self._weight += sum_of(weight)

    def result(self) -> Mapping[str, float]:
        """Return the means by name; empty if rows have no weights, or all are 0."""
        if not self._weight > 0:
            return {}
        means = (self._sums / self._weight).tolist()
        return {f"weighted_{name}": of for name, of in zip(self._names, means, strict=True)}
