"""How sure a mean over held-out rows is: the bootstrap, over the rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

# Of more rows, 2,000 resamples take over 2 s
MAX_ROWS = 100_000
_RESAMPLES, _SEED = 2_000, 0
_CHUNK_VALUES = 1 << 22  # of a resample, 32 MB
_COLUMNS = {"loss": "loss", "mse": "loss", "mae": "error"}  # a row's share in each mean


class RowValues:
    """Keeps each row's value of a metric that is a mean over rows.

    Args:
        metric: Name of the metric; of any other than `loss`, `mse` and `mae`, and of more than
            `MAX_ROWS` rows, nothing is kept.
        num_rows: Rows of the split.
    """

    def __init__(self, metric: str, num_rows: int) -> None:
        self._column = _COLUMNS.get(metric, "") if num_rows <= MAX_ROWS else ""
        self._kept: list[np.ndarray] = []

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """Keep the rows of a block."""
        if self._column in block:
            self._kept.append(np.abs(block[self._column]))  # a loss is not negative

    def interval(self) -> dict[str, Any]:
        """Return the `interval` of the mean, 95 %, and its `interval_method`; empty where none can be had."""
        values = np.concatenate([*self._kept, []])
        if len(values) < 2 or not values.std() > 0:
            return {}
        from scipy.stats import bootstrap  # some seconds

        found = bootstrap(
            (values,), np.mean, n_resamples=_RESAMPLES, method="percentile",
            batch=max(1, _CHUNK_VALUES // len(values)), random_state=_SEED,
        ).confidence_interval  # fmt: skip
        return {
            "interval": [float(found.low), float(found.high)],
            "interval_method": "bootstrap",
        }
