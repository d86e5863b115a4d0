"""Rungs of a study for the page: how many trials ended at each, how many trained on, and the best."""

from dataclasses import dataclass

from shardline.records.sweeps import ReportedStudy


@dataclass(frozen=True, kw_only=True)
class RungView:
    """A rung of a study.

    Attributes:
        length: Epochs or steps of a training that ends there.
        ended: Number of trials with a value there.
        survivors: Number of them with a value at the next rung.
        trial: The best of them; None if there is none.
        value: Its value.
    """

    length: int
    ended: int
    survivors: int
    trial: int | None
    value: float | None


def view_rungs(study: ReportedStudy) -> list[RungView]:
    """Return the rungs of a study in order; none if no trial stops early."""
    sign, found = 1 if study.mode == "min" else -1, []
    for rung, length in enumerate(study.rungs):
        values = {one.trial: one.values[rung] for one in study.trials if len(one.values) > rung}
        best = min(values, key=lambda trial: (sign * values[trial], trial), default=None)
        found.append(
            RungView(
                length=length,
                ended=len(values),
                survivors=sum(len(one.values) > rung + 1 for one in study.trials),
                trial=best,
                value=None if best is None else values[best],
            )
        )
    return found
