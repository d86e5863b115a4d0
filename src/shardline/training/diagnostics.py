"""Diagnostics beside an evaluation's metrics: calibration, residuals, samples and confidence intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from shardline.data.columns import features_of
from shardline.data.dataset import Dataset
from shardline.data.sample_index import RowUnits
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.data.windowmap import WindowMap
from shardline.records.evaluations import (
    Calibration,
    ConfidenceBin,
    HeadlineValue,
    Residuals,
    SampleView,
)
from shardline.training.pictures import is_image, picture
from shardline_io.order.pieces import Line, Piece, num_rows

NUM_BINS = 15
MAX_POINTS = 300
MAX_SAMPLES = 12
MAX_FEATURES = 8
_SHOWN = ("label", "predicted", "confidence", "loss")
# With more rows, 2,000 resamples take over 2 s
MAX_ROWS = 100_000
_RESAMPLES, _SEED = 2_000, 0
_CHUNK_VALUES = 1 << 22  # 32 MB of resampled values at a time
_COLUMNS = {"loss": "loss", "mse": "loss", "mae": "error"}  # by metric, the column it averages


class Bins:
    """Compares a classifier's confidence with its accuracy, in bins of equal width.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
    arXiv:1706.04599: bins are open below and closed above, and the expected calibration error is
    the mean distance of confidence and accuracy, each bin weighted by its samples.
    """

    def __init__(self) -> None:
        self._counts, self._rights = (np.zeros(NUM_BINS, np.int64) for _ in range(2))
        self._sums = np.zeros(NUM_BINS)

    def add(self, confidence: np.ndarray, is_right: np.ndarray) -> None:
        """Add a block of rows.

        Args:
            confidence: Probability of the predicted class [n], 0 to 1.
            is_right: Whether the predicted class is the true one [n].
        """
        place = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
        self._counts += np.bincount(place, minlength=NUM_BINS)
        self._rights += np.bincount(place[is_right], minlength=NUM_BINS)
        self._sums += np.bincount(place, confidence, NUM_BINS)

    def describe(self) -> Calibration:
        """Return the calibration."""
        columns = zip(self._counts, self._sums, self._rights, strict=True)
        bins = [
            ConfidenceBin(
                low=index / NUM_BINS,
                high=(index + 1) / NUM_BINS,
                count=int(count),
                confidence=float(total / count) if count else None,
                accuracy=float(right / count) if count else None,
            )
            for index, (count, total, right) in enumerate(columns)
        ]
        distances = np.abs(self._sums - self._rights)
        return Calibration(bins=bins, ece=float(distances.sum() / self._counts.sum()))


def residuals(rows: Mapping[str, np.ndarray]) -> Residuals:
    """Return the true and the predicted values of rows."""
    return Residuals(truth=[*_short(rows["label"])], predicted=[*_short(rows["predicted"])])


class Spread:
    """Keeps rows at even distances over a split: the middle row of each of `num_kept` equal parts.

    Args:
        num_rows: Rows of the split.
        num_kept: Rows to keep, at most.
    """

    def __init__(self, num_rows: int, num_kept: int) -> None:
        kept = min(num_rows, num_kept)
        self._places = (2 * np.arange(kept) + 1) * num_rows // (2 * max(kept, 1))
        self.rows: dict[str, np.ndarray] = {}

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """Keep the chosen rows of a block, by the column `place` (row index in the split)."""
        kept = np.isin(block["place"], self._places)
        self.rows = _joined(self.rows, {name: column[kept] for name, column in block.items()})


class Hardest:
    """Keeps the wrong predictions with the largest losses, the largest first."""

    def __init__(self) -> None:
        self.rows: dict[str, np.ndarray] = {}

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """Keep the hardest of a block's rows and the rows kept before."""
        wrong = block["label"] != block["predicted"]
        wrong = wrong.any(axis=1) if wrong.ndim > 1 else wrong
        rows = _joined(self.rows, {name: column[wrong] for name, column in block.items()})
        largest = np.argsort(-rows["loss"], kind="stable")[:MAX_SAMPLES]
        self.rows = {name: column[largest] for name, column in rows.items()}


class RowValues:
    """Keeps each row's value of a metric that is a mean over rows, for the bootstrap of its interval.

    Args:
        metric: Name of the metric. Rows are kept for `loss`, `mse` and `mae` only, and only if the
            split has at most `MAX_ROWS` rows.
        num_rows: Rows of the split.
    """

    def __init__(self, metric: str, num_rows: int) -> None:
        self._column = _COLUMNS.get(metric, "") if num_rows <= MAX_ROWS else ""
        self._kept: list[np.ndarray] = []

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """Keep the rows of a block."""
        if self._column in block:
            values = np.abs(block[self._column])  # a loss is not negative
            self._kept.append(values.mean(axis=1) if values.ndim > 1 else values)

    def with_interval(self, headline: HeadlineValue) -> HeadlineValue:
        """Return a headline with the 95 % interval of the mean, if values were kept."""
        values = np.concatenate([*self._kept, []])
        if len(values) < 2 or not values.std() > 0:
            return headline
        from scipy.stats import bootstrap  # some seconds

        found = bootstrap(
            (values,), np.mean, n_resamples=_RESAMPLES, method="percentile",
            batch=max(1, _CHUNK_VALUES // len(values)), random_state=_SEED,
        ).confidence_interval  # fmt: skip
        interval = [float(found.low), float(found.high)]
        return structs.replace(headline, interval=interval, interval_method="bootstrap")


def _joined(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([first.get(name, column[:0]), column])
        for name, column in second.items()
    }


class SampleRows:
    """Describes single rows of a split, and reads no other rows.

    Args:
        datasets: The datasets; row indices count through them in this order.
        split: Name of the split.
    """

    def __init__(self, datasets: Sequence[Dataset], split: str) -> None:
        self._datasets = datasets
        pieces = [dataset.shards.pieces(split) for dataset in datasets]
        self._lines = [Line(of) for of in pieces]
        self._ends = np.cumsum([num_rows(of) for of in pieces])

    def describe(self, rows: Mapping[str, np.ndarray]) -> list[SampleView]:
        """Describe rows.

        Args:
            rows: Columns [k]: `place` in the split, `label`, `predicted`, `loss` and, for
                classification, `confidence`. Classes are given by index.

        Returns:
            Per row: `row` (its id in the source), `label`, `predicted`, `loss` and `confidence` as
            far as known. If the dataset has features, also `image` (PNG data URL) if their shape is
            an image's, else the first eight `features`. A column `image` is shown too.
        """
        return [self._describe(rows, index) for index in range(len(rows["place"]))]

    def _describe(self, rows: Mapping[str, np.ndarray], index: int) -> SampleView:
        place = int(rows["place"][index])
        number = int(np.searchsorted(self._ends, place, side="right"))
        dataset, place = self._datasets[number], place - int([0, *self._ends][number])
        piece = self._lines[number].cut(place, place + 1)
        known = {name: self._value(name, rows[name][index]) for name in _SHOWN if name in rows}
        return {"row": int(dataset.shards.ids(piece)[0]), **known, **_shown(dataset, piece)}

    def _value(self, name: str, value: np.generic | np.ndarray) -> str | float:
        schema = self._datasets[0].manifest.schema
        classes = schema.classes
        if isinstance(value, np.ndarray):  # several numbers or flags
            pairs = [*zip(schema.targets or (), value.tolist(), strict=True)][:MAX_FEATURES]
            if schema.task == "multilabel":
                return ", ".join(name for name, is_set in pairs if is_set) or "none"
            return ", ".join(f"{name} {number:.6g}" for name, number in pairs)
        if classes and name in ("label", "predicted"):
            return str(classes[int(value)])
        return _short(np.array([value]))[0]


def _shown(dataset: Dataset, piece: Sequence[Piece]) -> SampleView:
    schema = dataset.manifest.schema
    if not (schema.stored or features_of(schema)):
        return _image(dataset, piece)
    features = _sample(dataset, piece)["features"]
    if is_image(features.shape):
        known = dataset.statistics["features"]  # black and white: range of the training rows
        return {"image": picture(features, (known.min.min(), known.max.max()))}
    return {"features": [_stored(value) for value in features.ravel()[:MAX_FEATURES]]}


def _image(dataset: Dataset, piece: Sequence[Piece]) -> SampleView:
    """Return the picture of a row's column `image`: an image file's bytes, or pixels."""
    column = dataset.shards.columns.get("image")
    if column is None or (column.kind == "array" and column.dtype != "uint8"):
        return {}
    image = _sample(dataset, piece)["image"]
    if isinstance(image, bytes):
        decode = TransformSpec(written="decode", what="samples of the page", has_chance=False)
        image = decode.make()((0, 0, 0, 0), {"image": image})["image"]
    return {"image": picture(image)} if image is not None and is_image(image.shape) else {}


def _sample(dataset: Dataset, piece: Sequence[Piece]) -> Mapping[str, Any]:
    units = RowUnits(shards=dataset.shards, pieces=tuple(piece))
    return units.load(WindowMap(dataset.shards, piece), piece).sample(0)


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _stored(value: np.generic) -> float | int:
    """Return a number with the fewest digits that identify it in its type: 0.1, not 0.10000000149."""
    return value.item() if value.dtype.kind in "iub" else float(str(value))
