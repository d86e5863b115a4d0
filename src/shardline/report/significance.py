"""Compare differences between runs with noise: means over seeds and folds, intervals and verdicts."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from shardline.core.intervals import (
    Interval,
    fold_interval,
    fold_spread,
    seed_interval,
    t_quantile,
)
from shardline.records.reports import ReportedRun


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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a difference from the best is larger than noise, at 95 % confidence.

    Attributes:
        standing: "best", "close" (the difference may be noise), "apart" (the difference is clear) or
            "unknown" (the noise is unknown).
        basis: "seeds" (Welch's interval of the difference of means over seeds), "folds" (the corrected
            paired interval over folds), "sampling" (only the choice of held-out samples) or "".
        difference: Ends of the interval of the difference, this mean minus the best.
    """

    standing: str
    basis: str = ""
    difference: Interval | None = None


def compare_with_best(
    one: SeedRepeats, run: ReportedRun, best: SeedRepeats, best_run: ReportedRun
) -> Verdict:
    """Compare a difference from the best with noise.

    Args:
        one: Values over seeds or folds.
        run: Best run of these.
        best: Values of the best line.
        best_run: Best run of the best line.
    """
    if one.mean == best.mean:
        return Verdict(standing="best")
    if one.folds and best.folds:
        interval, basis = fold_interval(best.by_fold, one.by_fold, one.num_folds), "folds"
    else:
        interval, basis = seed_interval(best.values, one.values), "seeds"
    if interval:
        is_close = interval[0] <= 0 <= interval[1]
        return Verdict(standing="close" if is_close else "apart", basis=basis, difference=interval)
    if one.by_fold.keys() != best.by_fold.keys():  # other held-out samples
        return Verdict(standing="unknown")
    mine, other = run.interval_of(one.mean), best_run.interval_of(best.mean)
    if not mine or not other:
        return Verdict(standing="unknown")
    return Verdict(standing="close" if mine[1] >= other[0] else "apart", basis="sampling")


_SEED_IN_NAME = re.compile(r"_(seed|fold)=[^_]+")


def repeats_of(runs: Iterable[ReportedRun]) -> list[list[ReportedRun]]:
    """Group runs that differ only in the seed, or in the fold that they test on, and keep their order."""
    found: dict[tuple[str, int], list[ReportedRun]] = {}
    num_seen: Counter[tuple[str, str]] = Counter()
    for run in runs:
        what, seed = run.all_but_seed, json.dumps([run.setting("seed"), run.fold])
        # the same seed again is no repeat: it would make the spread too small
        found.setdefault((what, num_seen[what, seed]), []).append(run)
        num_seen[what, seed] += 1
    return list(found.values())


def name_of_repeats(names: Sequence[str]) -> str:
    """Return the common name of runs that differ in the seed or the fold."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"


def is_share(metric: str) -> bool:
    """Return whether a metric is an accuracy by its name and shown in percent."""
    return metric.removeprefix("test_").removeprefix("val_") in ("acc", "accuracy")


def bounds_of(metric: str) -> Interval:
    """Return the lowest and highest possible value of a metric."""
    return (0.0, 1.0) if is_share(metric) else (-math.inf, math.inf)
