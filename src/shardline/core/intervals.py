"""Confidence intervals of held-out metrics and of their differences.

The formulas are written out for three reasons. `scipy.stats.binomtest` needs a whole number of successes, which
a mean over seeds is not. Its last bit differs from earlier reports. Importing `scipy.stats` takes seconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, variance
from typing import Any

Interval = tuple[float, float]
_Z_95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


def wilson_interval(proportion: float, num_samples: int) -> Interval:
    """Return the 95 % Wilson score interval of a proportion.

    Unlike the normal approximation it stays within 0 and 1 and keeps its coverage near both
    (Brown, Cai, DasGupta 2001, doi:10.1214/ss/1009213286).

    Args:
        proportion: Share of successes, 0 to 1.
        num_samples: Number of trials, at least 1.
    """
    square = _Z_95**2 / num_samples
    center = (proportion + square / 2) / (1 + square)
    spread = proportion * (1 - proportion) / num_samples + square / (4 * num_samples)
    half_width = _Z_95 / (1 + square) * math.sqrt(spread)
    return max(0.0, center - half_width), min(1.0, center + half_width)


def sampling_interval(old: float, new: float, num_samples: int) -> Interval:
    """Return the 95 % interval of the difference of two accuracies over the choice of held-out samples.

    This is Newcombe's hybrid score interval, from two Wilson intervals (Newcombe 1998, method 10,
    doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I). It assumes
    independent samples, so it is too wide if both models were evaluated on the same samples.

    Args:
        old: share of correct samples, 0 to 1.
        new: the same of the other model.
        num_samples: number of held-out samples, the same for both.
    """
    before, after = (wilson_interval(value, num_samples) for value in (old, new))
    difference = new - old
    return (
        difference - math.hypot(new - after[0], before[1] - old),
        difference + math.hypot(after[1] - new, old - before[0]),
    )


def seed_interval(old: Sequence[float], new: Sequence[float]) -> Interval | None:
    """Return Welch's 95 % interval of the difference of two means over seeds, new minus old.

    See Welch 1947, doi:10.1093/biomet/34.1-2.28. Return None if a side has fewer than two values
    or nothing varies.
    """
    if min(len(old), len(new)) < 2:
        return None
    squares = [variance(values) / len(values) for values in (old, new)]
    if not any(squares):
        return None
    terms = (
        square**2 / (len(values) - 1) for square, values in zip(squares, (old, new), strict=True)
    )
    freedom = sum(squares) ** 2 / sum(terms)
    half_width = t_quantile(freedom) * math.sqrt(sum(squares))
    difference = fmean(new) - fmean(old)
    return difference - half_width, difference + half_width


def fold_spread(number: int, folds: int) -> float:
    """Return the factor from the variance of the scores of folds to the variance of their mean.

    The folds' models share most of their train rows, so their scores are correlated, and the variance
    divided by the number of scores is too small. This is the correction of Nadeau and Bengio (2003),
    doi:10.1023/A:1024068626366: 1 / scores + test rows / train rows.

    Args:
        number: number of scores, one for each fold.
        folds: number of folds of the dataset; there is one test row for `folds` - 1 other rows.
    """
    return 1 / number + 1 / (folds - 1)


def fold_interval(
    old: Mapping[int, float], new: Mapping[int, float], folds: int
) -> Interval | None:
    """Return the 95 % interval of the difference of two means over folds, new minus old.

    This is the corrected paired t-test of Nadeau and Bengio, see `fold_spread`: both models were tested
    on the same folds. Return None if they share fewer than two folds or nothing varies.

    Args:
        old: score by fold; a mean over seeds, if there are several.
        new: the same of the other model.
        folds: number of folds of the dataset.
    """
    shared = sorted(old.keys() & new.keys())
    differences = [new[fold] - old[fold] for fold in shared]
    if len(shared) < 2 or not (spread := variance(differences)):
        return None
    variance_of_mean = fold_spread(len(shared), folds) * spread
    half_width = t_quantile(len(shared) - 1) * math.sqrt(variance_of_mean)
    return fmean(differences) - half_width, fmean(differences) + half_width


def but_seed(
    identity: Mapping[str, Any], evaluated: Mapping[str, Any] | None, left_out: Collection[str] = ("seed",)
) -> tuple[dict[str, Any], dict[str, Any] | None]:  # fmt: skip
    """Return the identity documents of a run without its seed; runs that differ only in the seed are equal.

    Args:
        identity: document of the training.
        evaluated: document of the evaluation; its inputs are left out, since they follow from the training.
        left_out: settings to leave out; with `fold`, the folds of a cross-validation are equal too.
    """
    settings = identity.get("settings") or {}
    settings = {key: value for key, value in settings.items() if key not in left_out}
    return {**identity, "settings": settings}, None if evaluated is None else {
        key: value for key, value in evaluated.items() if key != "inputs"
    }


def t_quantile(degrees_of_freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.975))
