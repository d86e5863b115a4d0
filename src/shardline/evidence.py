"""What shows how a model errs, beside its metrics: calibration, residuals and single samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardline.datamodule import Dataset
from shardline.pictures import is_image, picture
from shardline.sampling import cut, split_pieces

NUM_BINS = 15
MAX_POINTS = 300
MAX_SAMPLES = 12
MAX_FEATURES = 8


def calibration(confidence: np.ndarray, is_right: np.ndarray) -> dict[str, Any]:
    """Hold a classifier's confidence against its accuracy, in bins of equal width.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
    arXiv:1706.04599: bins are open below and closed above, and the expected calibration error is
    the mean distance of confidence and accuracy, each bin weighted by its samples.

    Args:
        confidence: Probability of the predicted class [n], 0 to 1.
        is_right: Whether the predicted class is the true one [n].

    Returns:
        `bins` (`low`, `high`, `count`, mean `confidence` and `accuracy`, null in empty bins) and
        `ece`, 0 to 1.
    """
    place = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    counts, sums, rights = (
        np.bincount(place, weights, NUM_BINS) for weights in (None, confidence, is_right)
    )
    bins = [
        {
            "low": index / NUM_BINS,
            "high": (index + 1) / NUM_BINS,
            "count": int(count),
            "confidence": float(total / count) if count else None,
            "accuracy": float(right / count) if count else None,
        }
        for index, (count, total, right) in enumerate(zip(counts, sums, rights, strict=True))
    ]
    return {"bins": bins, "ece": float(np.abs(sums - rights).sum() / len(confidence))}


def residuals(truth: np.ndarray, predicted: np.ndarray) -> dict[str, list[float]]:
    """Return at most 300 pairs of true and predicted values, evenly over the split."""
    kept = evenly(len(truth), MAX_POINTS)
    return {"truth": _short(truth[kept]), "predicted": _short(predicted[kept])}


def evenly(num_rows: int, num_kept: int) -> np.ndarray:
    """Return the places [k] of rows spread evenly over all: each is the middle of its stretch."""
    kept = min(num_rows, num_kept)
    return (2 * np.arange(kept) + 1) * num_rows // (2 * max(kept, 1))


def largest(loss: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return the places of the largest losses, the largest first, of equal ones the first.

    Args:
        loss: Each sample's loss [n].
        among: Which samples may be chosen [n] bool.
    """
    places = np.flatnonzero(among)
    return places[np.argsort(-loss[places], kind="stable")[:MAX_SAMPLES]]


class Samples:
    """Describes single rows of a split; reads those rows alone, whatever the split's size.

    Args:
        dataset: The dataset.
        split: Name of the split.
        columns: What is known of each of its rows, in the split's order: `label`, `predicted`,
            `loss` and, for classification, `confidence` [n] each; labels of classification as
            places in the schema's classes.
    """

    def __init__(self, dataset: Dataset, split: str, columns: Mapping[str, np.ndarray]) -> None:
        self._dataset, self._columns = dataset, columns
        self._pieces = split_pieces(dataset.manifest, split)

    def describe(self, places: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Describe rows.

        Args:
            places: Their places in the split's order.

        Returns:
            Per row `row` (its id, as the source numbered it), `label`, `predicted`, `loss`,
            `confidence` if known, and its `image` as a PNG data URL or its first eight `features`.
        """
        return [self._describe(int(place)) for place in places]

    def _describe(self, place: int) -> dict[str, Any]:
        shards, piece = self._dataset.shards, cut(self._pieces, place, place + 1)
        known = {name: self._value(name, column[place]) for name, column in self._columns.items()}
        features = shards.features[shards.rows(piece)[0]]
        return {"row": int(shards.ids(piece)[0]), **known, **self._shown(features)}

    def _value(self, name: str, value: np.generic) -> str | float:
        classes = self._dataset.manifest["schema"]["classes"]
        if classes and name in ("label", "predicted"):
            return str(classes[int(value)])
        return _short(np.array([value]))[0]

    def _shown(self, features: np.ndarray) -> dict[str, Any]:
        if is_image(features.shape):
            return {"image": picture(features, self._dataset.manifest["statistics"]["features"])}
        return {"features": [_stored(value) for value in features.ravel()[:MAX_FEATURES]]}


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _stored(value: np.generic) -> float | int:
    """Return a number as it is stored, in as few digits as tell it: 0.1, not 0.10000000149."""
    return value.item() if value.dtype.kind in "iub" else float(str(value))
