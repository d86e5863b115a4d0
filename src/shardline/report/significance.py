"""What noise leaves of a difference: means over seeds, their intervals, and the verdict on two."""

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
    """Held-out values of runs that differ in nothing but the seed.

    Attributes:
        values: One finite value per measured run.
        bounds: Least and greatest value that the metric can have.
    """

    values: Sequence[float]
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @cached_property
    def mean(self) -> float:
        """Their mean; NaN of none."""
        return fmean(self.values) if self.values else math.nan

    @cached_property
    def sd(self) -> float | None:
        """The standard deviation of the sample (n - 1); None of fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    @cached_property
    def interval(self) -> Interval | None:
        """The 95 % confidence interval of the mean, by Student's t; None of fewer than two.

        Student (1908), doi:10.1093/biomet/6.1.1. It is cut to the values that the metric can have.
        """
        if self.sd is None:
            return None
        half_width = t_quantile(len(self.values) - 1) * self.sd / math.sqrt(len(self.values))
        least, greatest = self.bounds
        return max(least, self.mean - half_width), min(greatest, self.mean + half_width)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a difference from the best is clear, at 95 % confidence.

    Attributes:
        standing: "best", "close" (the difference may be noise), "apart" (it is clear) or
            "unknown" (nothing tells how large the noise is).
        basis: "seeds" (Welch's interval of the difference of means over seeds), "sampling" (the
            choice of held-out samples alone) or "".
        difference: Ends of the interval of the difference, this less the best, by seeds.
    """

    standing: str
    basis: str = ""
    difference: Interval | None = None


def compare_with_best(
    one: SeedRepeats, run: ReportedRun, best: SeedRepeats, best_run: ReportedRun
) -> Verdict:
    """Return whether a difference from the best is clear.

    Args:
        one: Values over seeds, and `run`, one of these.
        best: Those of the best, and `best_run`.
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
    """Put runs together that differ in nothing but the seed, in the order in which they come."""
    found: dict[tuple[str, int], list[ReportedRun]] = {}
    num_seen: Counter[tuple[str, str]] = Counter()
    for run in runs:
        what, seed = run.all_but_seed, json.dumps(run.setting("seed"))
        # the same seed again repeats nothing: it would make the spread too small
        found.setdefault((what, num_seen[what, seed]), []).append(run)
        num_seen[what, seed] += 1
    return list(found.values())


def name_of_repeats(names: Sequence[str]) -> str:
    """Return what runs that differ in the seed are called together."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"
