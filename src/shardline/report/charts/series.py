"""Curves of a run, and its color in every chart."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from shardline.records.reported_parts import Curve, EpochEnds

OTHER_RUNS = "other runs"
OTHER_COLOR = "#9aa1ab"
# Best run first. Each color has a contrast of at least 3:1 to both page backgrounds (WCAG 2.2, 1.4.11).
PALETTE = (
    "#3f74d1",
    "#d9730d",
    "#2b9464",
    "#c2489b",
    "#8b6ad6",
    "#1591a3",
    "#a37a1a",
    "#d4505f",
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Curves of one run and their style.

    Attributes:
        run: Name in the tooltip.
        rank: 0 for the best run; the first runs have their own color and legend entry.
        curves: Curves by metric name.
        ends: Ends of the passes over the data; needed if `curves` are thinned.
    """

    run: str
    rank: int
    curves: Mapping[str, Curve]
    ends: EpochEnds | None = None

    @property
    def label(self) -> str:
        """Legend entry."""
        return self.run if self.rank < len(PALETTE) else OTHER_RUNS

    @property
    def color(self) -> str:
        """CSS color."""
        return PALETTE[self.rank] if self.rank < len(PALETTE) else OTHER_COLOR

    def epochs_at(self, curve: Curve) -> list[float]:
        """Return the number of passes over the data at each point of a curve.

        The last record of an epoch marks its end. Steps between are spaced evenly.
        """
        ends = self.ends or epoch_ends(self.curves)
        return [float(passed) for passed in np.interp(curve.steps, ends.steps, ends.passes)]


def epoch_ends(curves: Mapping[str, Curve]) -> EpochEnds:
    """Return the number of complete passes over the data at the end of each epoch.

    Args:
        curves: Complete curves, not thinned.
    """
    last: dict[int, int] = {}
    for curve in curves.values():
        for step, epoch in zip(curve.steps, curve.epochs, strict=False):
            last[epoch] = max(step, last.get(epoch, 0))
    steps, passes = [0], [0.0]
    for epoch in sorted(last):
        # the last epoch may be cut short; it is complete if it is as long as the epochs before
        whole = steps[-1] / passes[-1] * (epoch + 1 - passes[-1]) if passes[-1] else 0.0
        is_cut = epoch == max(last) and last[epoch] - steps[-1] < whole
        share = (last[epoch] - steps[-1]) / whole if is_cut else 1.0
        passes.append(passes[-1] + share * (epoch + 1 - passes[-1]))
        steps.append(last[epoch])
    return EpochEnds(steps=tuple(steps), passes=tuple(passes))


def thin(curve: Curve, max_points: int) -> Curve:
    """Thin a curve to the lowest and highest value of each range of steps, so that no spike is lost.

    Args:
        max_points: Maximum number of points; at least 4.

    Returns:
        The same curve if it is small enough, otherwise at most max_points points, including the first and
        the last.
    """
    num_points = len(curve.steps)
    if num_points <= max_points:
        return curve
    num_buckets = (max_points - 2) // 2
    kept = {0, num_points - 1}
    for bucket in range(num_buckets):
        inside = range(bucket * num_points // num_buckets, (bucket + 1) * num_points // num_buckets)
        kept.add(min(inside, key=curve.values.__getitem__))
        kept.add(max(inside, key=curve.values.__getitem__))
    order = sorted(kept)
    return replace(
        curve,
        steps=tuple(curve.steps[index] for index in order),
        values=tuple(curve.values[index] for index in order),
        epochs=tuple(curve.epochs[index] for index in order if curve.epochs),
        wall_s=tuple(curve.wall_s[index] for index in order if curve.wall_s),
    )
