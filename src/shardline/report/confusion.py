"""An evaluation's confusion for the page: a table of few classes, of many what is mistaken most."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CLASSES = 20  # a 1000-class table is 100 MB of HTML, of which nobody sees the whole
MAX_LISTED = 20


def view_confusion(confusion: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        confusion: An evaluation's `confusion`: the whole table (`classes`, `counts`), or of many
            classes the most frequent `mistakes` and the `hardest` classes.

    Returns:
        `num_classes`, `num_mistakes`, `max_undercount`, `classes` and `rows` of shaded cells where
        the table is shown, `mistakes` and `hardest`.

    Raises:
        KeyError, TypeError, ValueError, IndexError: it has another form.
    """
    if "counts" in confusion:
        return _of_table([str(name) for name in confusion["classes"]], confusion["counts"])
    listed = {
        "mistakes": [
            (one["truth"], one["predicted"], one["count"]) for one in confusion["mistakes"]
        ],
        "hardest": [(one["class"], one["samples"], one["right"]) for one in confusion["hardest"]],
    }
    counts = {key: int(confusion[key]) for key in ("num_classes", "num_mistakes", "max_undercount")}
    return counts | {"classes": [], "rows": [], **_shortened(**listed)}


def _of_table(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> dict[str, Any]:
    rows = list(zip(classes, counts, strict=True))
    mistakes = [
        (truth, classes[column], count)
        for index, (truth, row) in enumerate(rows)
        for column, count in enumerate(row)
        if count and column != index
    ]
    hardest = [(name, sum(row), row[index]) for index, (name, row) in enumerate(rows)]
    is_shown = len(classes) <= MAX_CLASSES
    return {
        "num_classes": len(classes),
        "num_mistakes": sum(count for _, _, count in mistakes),
        "max_undercount": 0,
        "classes": classes,
        "rows": [_row(name, row, index) for index, (name, row) in enumerate(rows) if is_shown],
        **_shortened(mistakes, [one for one in hardest if one[1] > one[2]]),
    }


def _row(name: str, counts: Sequence[int], index: int) -> dict[str, Any]:
    total = max(1, sum(counts))
    cells = [
        {"count": count, "shade": math.ceil(8 * count / total), "right": column == index}
        for column, count in enumerate(counts)
    ]
    return {"name": name, "cells": cells}


def _shortened(
    mistakes: Sequence[tuple[str, str, int]], hardest: Sequence[tuple[str, int, int]]
) -> dict[str, Any]:
    """Return the most frequent mistakes, and the classes of the lowest accuracy."""
    mistakes = sorted(mistakes, key=lambda one: -one[2])[:MAX_LISTED]
    hardest = sorted(hardest, key=lambda one: (one[2] / one[1], -one[1]))[:MAX_LISTED]
    return {
        "mistakes": [
            dict(zip(("truth", "predicted", "count"), one, strict=True)) for one in mistakes
        ],
        "hardest": [dict(zip(("name", "samples", "right"), one, strict=True)) for one in hardest],
    }
