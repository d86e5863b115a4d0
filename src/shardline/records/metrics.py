"""A line of `metrics.jsonl`: the metrics that were recorded at a step."""

from typing import Any

from shardline.records.base import Record

_PLACE = frozenset({"step", "epoch", "wall_s"})


class MetricLine(Record, frozen=True, kw_only=True):
    """A record of metrics; its file has them by name beside the place.

    Attributes:
        step: optimiser steps done.
        epoch: from 0; None where a script does not record it, as is `wall_s`.
        wall_s: seconds of training, all attempts together.
        values: by name; None for NaN and infinity, which JSON lacks.
    """

    step: int
    epoch: int | float | None = None
    wall_s: int | float | None = None
    values: dict[str, int | float | None]

    @classmethod
    def of(cls, document: object) -> "MetricLine | None":
        """Return what a line holds; None where it is no object with an integer step.

        What is no number is passed over: a script may record more.
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
        """Return the object of the line."""
        place = {"step": self.step, "epoch": self.epoch, "wall_s": self.wall_s}
        return {key: of for key, of in place.items() if of is not None} | self.values


def _number(value: Any) -> int | float | None:
    return value if type(value) in (int, float) else None
