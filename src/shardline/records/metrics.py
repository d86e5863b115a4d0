"""Lines of `metrics.jsonl`: the metrics of each logged step, and the images, tables and texts that a model logs."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType, ValidationError, convert, to_builtins

from shardline.records.base import Record

_PLACE = frozenset({"step", "epoch", "wall_s"})
_LOGGED = "logged"


class Logged(Record, frozen=True, kw_only=True):
    """An image, a table or a text that a model logged; exactly one of them, or why it was left out.

    Attributes:
        name: Name that the model gave.
        png: PNG file of an image, in base64.
        caption: Caption of an image.
        columns: Names of a table's columns.
        rows: Rows of a table: texts, numbers, booleans and nulls.
        text: A text.
        left_out: `size`: larger than one entry may be; `bound`: the run's bound was met, so this entry and all later
            ones are left out.
    """

    name: str
    png: str | UnsetType = UNSET
    caption: str | UnsetType = UNSET
    columns: list[str] | UnsetType = UNSET
    rows: list[list[Any]] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    left_out: Literal["size", "bound"] | UnsetType = UNSET


class MetricLine(Record, frozen=True, kw_only=True):
    """Metrics of one step; in the file, `values` are keys beside the others.

    Attributes:
        step: Optimiser steps done.
        epoch: Epoch, from 0; null if a script does not record it.
        wall_s: Seconds of training over all attempts; null if a script does not record them.
        values: Metrics by name; null for NaN and infinity.
        logged: What the model logged by one call of its logger, in place of metrics.
    """

    step: int
    epoch: int | float | None = None
    wall_s: int | float | None = None
    values: dict[str, int | float | None]
    logged: list[Logged] | UnsetType = UNSET

    @classmethod
    def of(cls, document: object) -> "MetricLine | None":
        """Return the metrics of a parsed line, or None if it has no integer step.

        Skips values that are no numbers, since a script may record more.
        """
        if not isinstance(document, dict) or type(document.get("step")) is not int:
            return None
        epoch, wall_s = (_number(document.get(key)) for key in ("epoch", "wall_s"))
        values = {
            str(name): value
            for name, value in document.items()
            if name not in _PLACE and (value is None or type(value) in (int, float))
        }
        logged = _logged(document.get(_LOGGED))
        return cls(step=document["step"], epoch=epoch, wall_s=wall_s, values=values, logged=logged)

    def to_json(self) -> dict[str, Any]:
        """Return the record as the JSON object of its line."""
        place = {"step": self.step, "epoch": self.epoch, "wall_s": self.wall_s}
        logged = {_LOGGED: to_builtins(self.logged)} if self.logged else {}
        return {key: of for key, of in place.items() if of is not None} | self.values | logged


def _logged(value: object) -> list[Logged] | UnsetType:
    if not isinstance(value, list):  # a metric may have this name
        return UNSET
    try:
        return convert(value, list[Logged])
    except ValidationError:
        return UNSET


def _number(value: Any) -> int | float | None:
    return value if type(value) in (int, float) else None
