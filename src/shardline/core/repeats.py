"""Repeats of a run with other seeds or folds: their mean, its interval, and their common name."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from shardline.core.intervals import Interval, fold_spread, t_quantile
from shardline.core.metric_names import measure_of

_SEED_IN_NAME = re.compile(r"_(seed|fold)=[^_]+")


@dataclass(frozen=True, kw_only=True)
class SeedRepeats:
    """Held-out values of runs that differ only in the seed, or in the fold that they test on.

    Attributes:
        values: One finite value per measured run.
        bounds: Lowest and highest possible value of the metric.
        folds: Fold of each value; empty without folds.
        num_folds: Number of folds of the dataset.
    """

    values: Sequence[float]
    bounds: tuple[float, float] = (-math.inf, math.inf)
    folds: Sequence[int] = ()
    num_folds: int = 0

    @cached_property
    def by_fold(self) -> dict[int, float]:
        """Mean over seeds of each fold; empty without folds."""
        found: dict[int, list[float]] = {}
        for fold, value in zip(self.folds, self.values, strict=False):
            found.setdefault(fold, []).append(value)
        return {fold: fmean(values) for fold, values in sorted(found.items())}

    @property
    def _scores(self) -> Sequence[float]:
        """Values that the mean and its interval are of: seeds of one fold are no independent scores."""
        return [*self.by_fold.values()] or self.values

    @cached_property
    def mean(self) -> float:
        """Mean over seeds, or over folds; NaN without a value."""
        return fmean(self._scores) if self._scores else math.nan

    @cached_property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1) over seeds, or over folds; None for fewer than two."""
        return stdev(self._scores) if len(self._scores) > 1 else None

    @cached_property
    def interval(self) -> Interval | None:
        """95 % confidence interval of the mean by Student's t; None for fewer than two values.

        Student (1908), doi:10.1093/biomet/6.1.1. Over folds, with the variance of Nadeau and Bengio,
        see `fold_spread`. The interval is clipped to `bounds`.
        """
        if self.sd is None:
            return None
        number = len(self._scores)
        if self.folds:
            error = self.sd * math.sqrt(fold_spread(number, self.num_folds))
            half_width = t_quantile(number - 1) * error
        else:
            half_width = t_quantile(number - 1) * self.sd / math.sqrt(number)
        least, greatest = self.bounds
        return max(least, self.mean - half_width), min(greatest, self.mean + half_width)

    @property
    def counted(self) -> str:
        """Number of folds and seeds in words, such as `5 folds x 3 seeds`."""
        if not self.folds:
            return f"{len(self.values)} seeds"
        folds = f"{len(self.by_fold)} of {self.num_folds} folds"
        if len(self.by_fold) == self.num_folds:
            folds = f"{self.num_folds} folds"
        seeds, rest = divmod(len(self.values), len(self.by_fold))
        if rest:
            return f"{folds}, {len(self.values)} runs"
        return folds if seeds == 1 else f"{folds} x {seeds} seeds"


def name_of_repeats(names: Sequence[str]) -> str:
    """Return the common name of runs that differ in the seed or the fold."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"


def is_share(metric: str) -> bool:
    """Return whether a metric is an accuracy by its name and shown in percent."""
    return measure_of(metric) in ("acc", "accuracy")


def bounds_of(metric: str) -> Interval:
    """Return the lowest and highest possible value of a metric."""
    least = 0.0 if is_share(metric) or measure_of(metric) in ("mse", "rmse", "mae") else -math.inf
    return least, 1.0 if is_share(metric) else math.inf
