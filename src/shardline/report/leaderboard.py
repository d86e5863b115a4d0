"""Ranking runs into leaderboards: who is best, and who is not clearly worse."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, groupby
from typing import Any

from shardline import charts
from shardline.report.run import Run

_WHISKER_WIDTH = 84  # of the template's drawing


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run in its leaderboard.

    Attributes:
        run: The run.
        anchor: Element id of its details.
        place: 1 for the best; equal values share a place.
        standing: "best", "close" (interval reaches the best's) or "".
        series: Its curves as they are drawn.
        whisker: Lower end, value and upper end of the interval, 0 to the width of the drawing.
    """

    run: Run
    anchor: str
    place: int
    standing: str
    series: charts.Series
    whisker: tuple[float, float, float] | None

    @property
    def title(self) -> str:
        """The run's name, or its whole key where two runs share the name."""
        return self.series.run


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that were evaluated on the same samples by the same metric, the best first."""

    title: str
    anchor: str
    metric: str
    split: str
    entries: Sequence[Entry]

    @cached_property
    def chart(self) -> dict[str, Any] | None:
        """Learning curves of losses and headline metric; None where nothing was recorded."""
        names = ["train_loss", "val_loss"]
        if any(not _repeats_loss(entry.run) for entry in self.entries):
            names.append(f"val_{self.metric}")
        return charts.learning_curves([entry.series for entry in self.entries], names)

    @property
    def mode(self) -> str:
        """ "max" if a higher metric is better, else "min"."""
        return self.entries[0].run.mode

    @property
    def reference(self) -> Mapping[str, Any] | None:
        """A value to hold the results against, if the dataset's source knows one."""
        return self.entries[0].run.evaluation.get("reference")

    @property
    def legend(self) -> dict[str, str]:
        """Legend label to colour."""
        return {
            entry.series.label: entry.series.color for entry in self.entries if entry.run.curves
        }

    @property
    def num_close(self) -> int:
        """Runs that are not clearly different from the best."""
        return sum(entry.standing == "close" for entry in self.entries)


def rank(runs: Sequence[Run]) -> list[Group]:
    """Rank all runs against those that they can be compared with.

    Args:
        runs: In any order; the result does not depend on it.
    """
    ordered = sorted(runs, key=lambda run: (run.group_key, run.name, run.key))
    num_ids = Counter(dataset for dataset, _ in {run.group_key[:2] for run in runs})
    numbers = count(1)
    return [
        Group(
            title=dataset if num_ids[dataset] == 1 else dataset_id,
            anchor=f"group-{index}",
            metric=metric,
            split=split,
            entries=_entries(list(members), numbers),
        )
        for index, ((dataset, dataset_id, split, metric), members) in enumerate(
            groupby(ordered, key=lambda run: run.group_key), start=1
        )
    ]


def _entries(runs: Sequence[Run], numbers: Iterator[int]) -> list[Entry]:
    sign = -1 if runs[0].mode == "max" else 1
    ranked = sorted(runs, key=lambda run: math.inf if math.isnan(run.value) else sign * run.value)
    names = Counter(run.name for run in ranked)
    titles = [run.name if names[run.name] == 1 else run.key for run in ranked]
    low, high = _scale(ranked)
    return [
        Entry(
            run=run,
            anchor=f"run-{next(numbers)}",
            # NaN equals nothing: runs without a value share no place
            place=1 + sum(other.value != run.value for other in ranked[:index]),
            standing=_standing(run, ranked[0]),
            series=charts.Series(run=title, rank=index, curves=run.curves),
            whisker=_whisker(run, low, high),
        )
        for index, (run, title) in enumerate(zip(ranked, titles, strict=True))
    ]


def _standing(run: Run, best: Run) -> str:
    if run.value == best.value:
        return "best"
    reaches = run.interval and best.interval and run.interval[1] >= best.interval[0]
    return "close" if reaches else ""


def _scale(ranked: Sequence[Run]) -> tuple[float, float]:
    """Return the ends of the interval drawings: a failed run must not flatten all others."""
    intervals = [run.interval for run in ranked if run.interval]
    if not intervals:
        return 0.0, 0.0
    high = max(high for _, high in intervals)
    lowest = high - 6 * (intervals[0][1] - intervals[0][0])
    return min((low for low, _ in intervals if low >= lowest), default=lowest), high


def _whisker(run: Run, low: float, high: float) -> tuple[float, float, float] | None:
    if run.interval is None or run.value < low:
        return None
    ends = (max(low, run.interval[0]), run.value, run.interval[1])
    first, middle, last = (round(_WHISKER_WIDTH * (end - low) / (high - low), 1) for end in ends)
    return first, middle, last


def _repeats_loss(run: Run) -> bool:
    return run.curves.get(f"val_{run.metric}") == run.curves.get("val_loss")
