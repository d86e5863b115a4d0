"""Compare differences between runs with noise: means over seeds and folds, intervals and verdicts."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardline.core.intervals import Interval, fold_interval, seed_interval
from shardline.core.repeats import SeedRepeats
from shardline.records.reported_runs import ReportedRun


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
