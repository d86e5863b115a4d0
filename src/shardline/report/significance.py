"""Compare differences between runs with noise: means over seeds, intervals and verdicts."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from shardline.core.intervals import Interval, seed_interval, t_quantile
from shardline.records.reports import ReportedRun


@dataclass(frozen=True, kw_only=True)
class SeedRepeats:
    """Held-out values of runs that differ only in the seed.

    Attributes:
        values: One finite value per measured run.
        bounds: Lowest and highest possible value of the metric.
    """

    values: Sequence[float]
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @cached_property
    def mean(self) -> float:
        """Mean; NaN without a value."""
        return fmean(self.values) if self.values else math.nan

    @cached_property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1); None for fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    @cached_property
    def interval(self) -> Interval | None:
        """95 % confidence interval of the mean by Student's t; None for fewer than two values.

        Student (1908), doi:10.1093/biomet/6.1.1. The interval is clipped to `bounds`.
        """
        if self.sd is None:
            return None
        half_width = t_quantile(len(self.values) - 1) * self.sd / math.sqrt(len(self.values))
        least, greatest = self.bounds
        return max(least, self.mean - half_width), min(greatest, self.mean + half_width)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a difference from the best is larger than noise, at 95 % confidence.

    Attributes:
        standing: "best", "close" (the difference may be noise), "apart" (the difference is clear) or
            "unknown" (the noise is unknown).
        basis: "seeds" (Welch's interval of the difference of means over seeds), "sampling" (only
            the choice of held-out samples) or "".
        difference: Ends of Welch's interval of the difference, this mean minus the best.
    """

    standing: str
    basis: str = ""
    difference: Interval | None = None


def compare_with_best(
    one: SeedRepeats, run: ReportedRun, best: SeedRepeats, best_run: ReportedRun
) -> Verdict:
    """Compare a difference from the best with noise.

    Args:
        one: Values over seeds.
        run: Best run of these.
        best: Values of the best line.
        best_run: Best run of the best line.
    """
    if one.mean == best.mean:
        return Verdict(standing="best")
    if interval := seed_interval(best.values, one.values):
        is_close = interval[0] <= 0 <= interval[1]
        return Verdict(
            standing="close" if is_close else "apart", basis="seeds", difference=interval
        )
    mine, other = run.interval_of(one.mean), best_run.interval_of(best.mean)
    if not mine or not other:
        return Verdict(standing="unknown")
    return Verdict(standing="close" if mine[1] >= other[0] else "apart", basis="sampling")


_SEED_IN_NAME = re.compile(r"_seed=[^_]+")


def repeats_of(runs: Iterable[ReportedRun]) -> list[list[ReportedRun]]:
    """Group runs that differ only in the seed, and keep their order."""
    found: dict[tuple[str, int], list[ReportedRun]] = {}
    num_seen: Counter[tuple[str, str]] = Counter()
    for run in runs:
        what, seed = run.all_but_seed, json.dumps(run.setting("seed"))
        # the same seed again is no repeat: it would make the spread too small
        found.setdefault((what, num_seen[what, seed]), []).append(run)
        num_seen[what, seed] += 1
    return list(found.values())


def name_of_repeats(names: Sequence[str]) -> str:
    """Return the common name of runs that differ in the seed."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"
