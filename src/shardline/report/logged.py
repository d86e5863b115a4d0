"""Images, tables and texts that a model logged, small enough for the page."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from shardline.core.png import png_size, reduced_png
from shardline.records.metrics import Logged, MetricLine
from shardline.records.reported_tables import ReportedEntry, ReportedImage, ReportedLog

MAX_STEPS = 6  # of a name
MAX_IMAGES = 8  # of a name and step
MAX_SIDE = 192  # pixels
MAX_ROWS, MAX_COLUMNS, MAX_CELL = 20, 12, 120
MAX_TEXT = 2000


def describe_logged(lines: Sequence[MetricLine], action: str) -> list[ReportedLog]:
    """Return what was logged by name, in the order of first appearance.

    Args:
        lines: Lines of metrics.jsonl with entries.
        action: Id of the action that trained.
    """
    by_name: dict[str, list[tuple[int, list[Logged]]]] = {}
    for line in lines:
        for one in line.logged or ():
            at = by_name.setdefault(one.name, [])
            # images of one name and step are one entry
            if at and at[-1][0] == line.step and one.png and at[-1][1][-1].png:
                at[-1][1].append(one)
            elif not one.left_out:
                at.append((line.step, [one]))
    return [
        ReportedLog(
            name=name,
            num_entries=len(found),
            entries=[_entry(*found[place]) for place in _spread(len(found))],
            action=action,
        )
        for name, found in by_name.items()
        if found
    ]


def bound_met_at(lines: Sequence[MetricLine]) -> int | UnsetType:
    """Return the step from which on entries were left out."""
    met = (line.step for line in lines for one in line.logged or () if one.left_out == "bound")
    return next(met, UNSET)


def _spread(number: int) -> list[int]:
    """Return places spread evenly, the first and the last among them."""
    few = min(number, MAX_STEPS)
    return [round(place * (number - 1) / max(1, few - 1)) for place in range(few)]


def _entry(step: int, items: Sequence[Logged]) -> ReportedEntry:
    first = items[0]
    if first.png:
        images = [image for one in items[:MAX_IMAGES] if (image := _image(one))]
        return ReportedEntry(step=step, images=images, num_more=len(items) - len(images))
    if first.rows is not UNSET:
        return ReportedEntry(
            step=step,
            columns=[_cut(one) for one in (first.columns or [])[:MAX_COLUMNS]],
            rows=[[_cut(cell) for cell in row[:MAX_COLUMNS]] for row in first.rows[:MAX_ROWS]],
            num_more=max(0, len(first.rows) - MAX_ROWS),
        )
    text = first.text or ""
    return ReportedEntry(step=step, text=text[:MAX_TEXT], num_more=max(0, len(text) - MAX_TEXT))


def _image(item: Logged) -> ReportedImage | None:
    """Return an image as a data URL, reduced; None if the file was changed and is no image."""
    try:
        png = base64.b64decode(item.png or "", validate=True)
        small = base64.b64encode(reduced_png(png, MAX_SIDE)).decode()
        width, height = png_size(png)
    except (ValueError, IndexError, zlib.error, ArithmeticError):
        return None
    return ReportedImage(
        image=f"data:image/png;base64,{small}", width=width, height=height, caption=item.caption
    )


def _cut(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > MAX_CELL
    return f"{value[:MAX_CELL]}…" if is_long else value
