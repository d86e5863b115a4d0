"""Confusions, and images, tables and texts that models logged, in `report.json`."""

from typing import Any

from msgspec import UNSET, UnsetType

from shardline.records.base import Record
from shardline.records.evaluations import Mistake


class Cell(Record, frozen=True, kw_only=True):
    """A cell of a confusion matrix.

    Attributes:
        count: Number of samples.
        shade: Share of the row, in eighths.
        right: Whether the cell counts correct predictions.
    """

    count: int
    shade: int
    right: bool


class ConfusionRow(Record, frozen=True, kw_only=True):
    """A row of a confusion matrix.

    Attributes:
        name: True class.
        cells: A cell for each predicted class.
    """

    name: str
    cells: list[Cell]


class ClassAccuracy(Record, frozen=True, kw_only=True):
    """Accuracy of one class.

    Attributes:
        name: Name of the class.
        samples: Number of samples of the class.
        right: Number of correctly predicted samples.
    """

    name: Any
    samples: int
    right: int


class ReportedConfusion(Record, frozen=True, kw_only=True):
    """Confusion of a classifier, as the page shows it.

    Attributes:
        num_classes: Number of classes.
        num_mistakes: Number of wrong predictions.
        max_undercount: Largest possible error of a count in `mistakes`; counts are never too high.
        classes: Names of the classes, if there are few.
        rows: Rows of the confusion matrix, if there are few classes.
        mistakes: Most frequent mistakes.
        hardest: Classes with the lowest accuracy.
    """

    num_classes: int
    num_mistakes: int
    max_undercount: int
    classes: list[str]
    rows: list[ConfusionRow]
    mistakes: list[Mistake]
    hardest: list[ClassAccuracy]


class ReportedImage(Record, frozen=True, kw_only=True):
    """An image that a model logged.

    Attributes:
        image: Key in `images` of the report; absent if the image is left out to keep the page small.
        width: Width of the logged image in pixels.
        height: Height of the logged image in pixels.
        caption: Caption.
    """

    image: str | UnsetType = UNSET
    width: int
    height: int
    caption: str | UnsetType = UNSET


class ReportedEntry(Record, frozen=True, kw_only=True):
    """What a model logged under one name at one step; long tables and texts are cut.

    Attributes:
        step: Optimiser steps done.
        images: Images.
        columns: Names of a table's columns.
        rows: Rows of a table.
        text: A text.
        num_more: Number of images, rows or characters that are left out here.
    """

    step: int
    images: list[ReportedImage] | UnsetType = UNSET
    columns: list[str] | UnsetType = UNSET
    rows: list[list[Any]] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    num_more: int = 0


class ReportedLog(Record, frozen=True, kw_only=True):
    """Entries that a model logged under one name.

    Attributes:
        name: Name that the model gave.
        num_entries: Number of entries in metrics.jsonl.
        entries: Entries of some steps, the first and the last among them.
        action: Id of the action.
    """

    name: str
    num_entries: int
    entries: list[ReportedEntry]
    action: str
