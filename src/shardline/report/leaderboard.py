"""Rank runs into leaderboards, and compare their differences with noise."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from shardline.core.metric_names import find_metric
from shardline.core.repeats import SeedRepeats, bounds_of, name_of_repeats
from shardline.records.datasets import Reference
from shardline.records.reported_runs import GroupKey, ReportedRun
from shardline.report.charts.axes import Spec
from shardline.report.charts.curves import learning_curves
from shardline.report.charts.series import Series
from shardline.report.significance import Verdict, compare_with_best, repeats_of

MAX_PANELS = 6  # shown if neither a loss nor the headline metric was recorded
MAX_OFFERED = 60
WHISKER_WIDTH = 84  # in pixels of the template's drawing


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of the page.

    Attributes:
        title: Name of the run, or its id if two runs share the name.
        anchor: Element id of the run's details.
        series: Curves for the charts.
    """

    run: ReportedRun
    title: str
    anchor: str
    series: Series


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """Line of a leaderboard: one run, or several runs that differ only in the seed or the fold.

    Attributes:
        entries: Runs of the line, best first.
        title: Name of the line.
        anchor: Element id of the line.
        place: 1 for the best; equal values share a place.
        repeats: Measured values over seeds or folds.
        verdict: Whether the difference from the best is larger than noise.
        whisker: Lower end, value and upper end of the interval, from 0 to `WHISKER_WIDTH`.
    """

    entries: Sequence[Entry]
    title: str
    anchor: str
    place: int
    repeats: SeedRepeats
    verdict: Verdict
    whisker: tuple[float, float, float] | None

    @property
    def run(self) -> ReportedRun:
        """Best run of the line."""
        return self.entries[0].run

    @property
    def value(self) -> float:
        """Mean over seeds or folds; NaN without a value."""
        return self.repeats.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval over seeds or folds, or over held-out samples if runs were not repeated."""
        return self.repeats.interval or self.run.interval_of(self.value)

    def setting(self, key: str) -> Any:
        """Return a setting that all runs of the line share; None if the values differ."""
        values = [entry.run.setting(key) for entry in self.entries]
        return values[0] if all(value == values[0] for value in values) else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Leaderboard of runs evaluated on the same samples by the same metric.

    Attributes:
        rows: Lines, best first.
        entries: Runs of all lines, best first.
    """

    title: str
    anchor: str
    metric: str
    split: str
    rows: Sequence[LeaderboardRow]
    entries: Sequence[Entry]

    @cached_property
    def chart(self) -> Spec | None:
        """Learning curves of all recorded metrics; None if nothing was recorded.

        Losses and the headline metric are shown at first, otherwise the first metrics. A reader can choose others.
        """
        runs = [entry.run for entry in self.entries]
        names = [
            find_metric(run.curves, "loss", split) for split in ("train", "val") for run in runs
        ]
        if any(not _repeats_loss(run) for run in runs):
            names += [run.validation_metric for run in runs]
        recorded = {
            name
            for entry in self.entries
            for name, curve in entry.run.curves.items()
            if curve.steps
        }
        known = dict.fromkeys(name for name in names if name in recorded)
        chosen = [name for name in known if name] or sorted(recorded)[:MAX_PANELS]
        others = sorted(recorded - {*chosen})[: MAX_OFFERED - len(chosen)]
        return learning_curves([entry.series for entry in self.entries], chosen, others)

    @property
    def mode(self) -> str:
        """ "max" if a higher metric is better, else "min"."""
        return self.entries[0].run.mode

    @property
    def reference(self) -> Reference | None:
        """Reference value from the source of the dataset, if known."""
        return self.entries[0].run.known_value

    @property
    def legend(self) -> dict[str, str]:
        """Colors by legend label."""
        return {
            entry.series.label: entry.series.color for entry in self.entries if entry.run.curves
        }

    @property
    def bases(self) -> set[str]:
        """Kinds of noise that the rows' differences from the best were compared with."""
        return {row.verdict.basis for row in self.rows} - {""}

    @property
    def others(self) -> Sequence[LeaderboardRow]:
        """Rows behind the first that have a finite value."""
        return [row for row in self.rows[1:] if math.isfinite(row.value)]

    @property
    def num_by_standing(self) -> Counter[str]:
        """Number of `others` by `Verdict.standing`."""
        return Counter(row.verdict.standing for row in self.others)

    @property
    def lead(self) -> str:
        """Whether the lead of the best row is larger than the noise.

        "clear", "unclear" (a row is within noise), "tied", "unknown" (the noise of a row is unknown),
        "only" (one row has a value) or "none" (no row has a value).
        """
        if not math.isfinite(self.rows[0].value):
            return "none"
        found = self.num_by_standing
        states = {"tied": found["best"], "unclear": found["close"], "unknown": found["unknown"]}
        fallback = "clear" if self.others else "only"
        return next((state for state, number in states.items() if number), fallback)


@dataclass(frozen=True, kw_only=True)
class Leaderboards:
    """All runs of a report.

    Attributes:
        groups: Leaderboards.
        apart: Runs outside the leaderboards, made by scaling studies.
    """

    groups: Sequence[Group]
    apart: Sequence[Entry]

    @classmethod
    def of(cls, runs: Sequence[ReportedRun]) -> "Leaderboards":
        """Rank runs, in any order."""
        apart = [run for run in runs if not run.in_table]
        return cls(groups=rank(runs), apart=entries_of(apart, anchors_of(runs)))

    @property
    def entries(self) -> list[Entry]:
        """All entries, with the leaderboards first."""
        return [entry for group in self.groups for entry in group.entries] + list(self.apart)

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs, in the order of `entries`."""
        return [entry.run for entry in self.entries]


def rank(runs: Sequence[ReportedRun]) -> list[Group]:
    """Return a leaderboard for each group of comparable runs.

    Args:
        runs: Runs in any order, which does not change the result.
    """
    anchors = anchors_of(runs)
    ordered = sorted(
        (run for run in runs if run.in_table), key=lambda run: (run.group_key, run.name, run.id)
    )
    titles = titles_of({run.group_key for run in ordered})
    return [
        _group(list(members), anchors, title=titles[key], anchor=f"group-{index}")
        for index, (key, members) in enumerate(
            groupby(ordered, key=lambda run: run.group_key), start=1
        )
    ]


def titles_of(keys: Collection[GroupKey]) -> dict[GroupKey, str]:
    """Return group titles: the dataset's name, and the differing parts if several groups share this name.

    Args:
        keys: Distinct values of `ReportedRun.group_key`.
    """
    found = {}
    for key in keys:
        columns = zip(*(other for other in keys if other[0] == key[0]), strict=True)
        differing = [one for one, column in zip(key, columns, strict=True) if len(set(column)) > 1]
        found[key] = f"{key[0]} ({', '.join(differing)})" if differing else key[0]
    return found


def anchors_of(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Return element ids by run id, made from digests so that links remain valid."""
    keys = sorted(run.id for run in runs)
    digests = Counter(_digest(key) for key in keys)
    return {
        key: f"run-{_digest(key)}" if digests[_digest(key)] == 1 else f"run-{index}"
        for index, key in enumerate(keys, start=1)
    }


def entries_of(runs: Sequence[ReportedRun], anchors: Mapping[str, str]) -> list[Entry]:
    """Return entries of runs, in the same order.

    Args:
        runs: The first run gets the first color of the charts.
        anchors: Element ids by run id.
    """
    names = Counter(run.name for run in runs)
    titles = [run.name if names[run.name] == 1 else run.id for run in runs]
    return [
        Entry(
            run=run,
            title=title,
            anchor=anchors[run.id],
            series=Series(run=title, rank=index, curves=run.curves, ends=run.epoch_ends),
        )
        for index, (run, title) in enumerate(zip(runs, titles, strict=True))
    ]


def _digest(key: str) -> str:
    return re.sub(r"[^0-9a-z]", "", key.rpartition("-")[2].lower())


def _group(
    runs: Sequence[ReportedRun], anchors: Mapping[str, str], *, title: str, anchor: str
) -> Group:
    sign = -1 if runs[0].mode == "max" else 1

    def order(value: float) -> float:
        return math.inf if math.isnan(value) else sign * value

    entries = entries_of(sorted(runs, key=lambda run: order(run.value)), anchors)
    by_key = {entry.run.id: entry for entry in entries}
    alike = [
        [by_key[run.id] for run in repeats]
        for repeats in repeats_of(entry.run for entry in entries)
    ]
    measured = [(_repeats(members), members) for members in alike]
    measured.sort(key=lambda item: order(item[0].mean))
    return Group(
        title=title,
        anchor=anchor,
        metric=runs[0].metric,
        split=runs[0].split,
        rows=_rows(measured, anchor, sign),
        entries=entries,
    )


def _repeats(entries: Sequence[Entry]) -> SeedRepeats:
    measured = [entry.run for entry in entries if math.isfinite(entry.run.value)]
    return SeedRepeats(
        values=[run.value for run in measured],
        bounds=bounds_of(entries[0].run.metric),
        folds=[run.fold for run in measured if run.fold is not None],
        num_folds=entries[0].run.num_folds or 0,
    )


def _rows(
    measured: Sequence[tuple[SeedRepeats, Sequence[Entry]]], group: str, sign: int
) -> list[LeaderboardRow]:
    intervals = [
        repeats.interval or members[0].run.interval_of(repeats.mean)
        for repeats, members in measured
    ]
    means = [repeats.mean for repeats, _ in measured]
    scale = _scale(list(filter(None, intervals)), sign)
    best, best_run = measured[0][0], measured[0][1][0].run
    return [
        LeaderboardRow(
            entries=members,
            title=name_of_repeats([entry.title for entry in members]),
            anchor=f"{group}-row-{index + 1}",
            # NaN equals nothing, so runs without a value share no place
            place=1 + sum(other != repeats.mean for other in means[:index]),
            repeats=repeats,
            verdict=compare_with_best(repeats, members[0].run, best, best_run),
            whisker=_whisker(repeats.mean, intervals[index], scale),
        )
        for index, (repeats, members) in enumerate(measured)
    ]


def _scale(intervals: Sequence[tuple[float, float]], sign: int) -> tuple[float, float]:
    """Return the ends of the interval drawings, so that a failed run does not flatten all others."""
    if not intervals:
        return 0.0, 0.0
    # the narrowest of the first three: two seeds can give an interval of any width
    widths = (high - low for low, high in intervals[:3])
    room = 6 * min((width for width in widths if width), default=0.0)
    ends = [min(low for low, _ in intervals), max(high for _, high in intervals)]
    if sign < 0:
        return max(ends[0], intervals[0][1] - room), min(ends[1], intervals[0][1])
    return max(ends[0], intervals[0][0]), min(ends[1], intervals[0][0] + room)


def _whisker(
    value: float, interval: tuple[float, float] | None, scale: tuple[float, float]
) -> tuple[float, float, float] | None:
    low, high = scale
    if interval is None or not low <= value <= high or low == high:
        return None
    ends = (max(low, interval[0]), value, min(high, interval[1]))
    first, middle, last = (round(WHISKER_WIDTH * (end - low) / (high - low), 1) for end in ends)
    return first, middle, last


def _repeats_loss(run: ReportedRun) -> bool:
    return run.curves.get(run.validation_metric) == run.curve_of_loss("val")
