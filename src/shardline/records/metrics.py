"""Lines of `metrics.jsonl`: the metrics of each logged step."""

from typing import Any

from shardline.records.base import Record

_PLACE = frozenset({"step", "epoch", "wall_s"})


class MetricLine(Record, frozen=True, kw_only=True):
    """Metrics of one step; in the file, `values` are keys beside the others.

    Attributes:
        step: Optimiser steps done.
        epoch: Epoch, from 0; null if a script does not record it.
        wall_s: Seconds of training over all attempts; null if a script does not record them.
        values: Metrics by name; null for NaN and infinity.
    """

    step: int
    epoch: int | float | None = None
    wall_s: int | float | None = None
    values: dict[str, int | float | None]

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
        return cls(step=document["step"], epoch=epoch, wall_s=wall_s, values=values)

    def to_json(self) -> dict[str, int | float | None]:
        """Return the record as the JSON object of its line."""
        place = {"step": self.step, "epoch": self.epoch, "wall_s": self.wall_s}
        return {key: of for key, of in place.items() if of is not None} | self.values


def _number(value: Any) -> int | float | None:
    return value if type(value) in (int, float) else None
