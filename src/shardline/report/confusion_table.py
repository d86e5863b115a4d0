"""Confusion of an evaluation for the page: a table for few classes, frequent mistakes for many."""

import math
from collections.abc import Iterable, Sequence

from msgspec import UNSET

from shardline.records.evaluations import ConfusionResult, Mistake
from shardline.records.reported_tables import Cell, ClassAccuracy, ConfusionRow, ReportedConfusion

MAX_CLASSES = 20  # a table of 1000 classes would be 100 MB of HTML
MAX_LISTED = 20


def view_confusion(confusion: ConfusionResult) -> ReportedConfusion:
    """Return the confusion for the page."""
    if confusion.counts is not UNSET:
        return _of_table([str(name) for name in confusion.classes or ()], confusion.counts)
    return ReportedConfusion(
        num_classes=confusion.num_classes or 0,
        num_mistakes=confusion.num_mistakes or 0,
        max_undercount=confusion.max_undercount or 0,
        classes=[],
        rows=[],
        mistakes=_most_frequent(confusion.mistakes or ()),
        hardest=_least_accurate(
            ClassAccuracy(name=one.class_, samples=one.samples, right=one.right)
            for one in confusion.hardest or ()
        ),
    )


def _of_table(classes: list[str], counts: Sequence[Sequence[int]]) -> ReportedConfusion:
    rows = list(zip(classes, counts, strict=True))
    mistakes = [
        Mistake(truth=truth, predicted=classes[column], count=count)
        for index, (truth, row) in enumerate(rows)
        for column, count in enumerate(row)
        if count and column != index
    ]
    found = [
        ClassAccuracy(name=name, samples=sum(row), right=row[index])
        for index, (name, row) in enumerate(rows)
    ]
    is_shown = len(classes) <= MAX_CLASSES
    return ReportedConfusion(
        num_classes=len(classes),
        num_mistakes=sum(one.count for one in mistakes),
        max_undercount=0,
        classes=classes,
        rows=[_row(name, row, index) for index, (name, row) in enumerate(rows) if is_shown],
        mistakes=_most_frequent(mistakes),
        hardest=_least_accurate(one for one in found if one.samples > one.right),
    )


def _row(name: str, counts: Sequence[int], index: int) -> ConfusionRow:
    total = max(1, sum(counts))
    cells = [
        Cell(count=count, shade=math.ceil(8 * count / total), right=column == index)
        for column, count in enumerate(counts)
    ]
    return ConfusionRow(name=name, cells=cells)


def _most_frequent(mistakes: Iterable[Mistake]) -> list[Mistake]:
    return sorted(mistakes, key=lambda one: -one.count)[:MAX_LISTED]


def _least_accurate(found: Iterable[ClassAccuracy]) -> list[ClassAccuracy]:
    return sorted(found, key=lambda one: (one.right / one.samples, -one.samples))[:MAX_LISTED]
