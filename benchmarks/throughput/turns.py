"""Programs that train in turn on the CPU; see `benchmarks.turns`."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks import turns


class Turn(NamedTuple):
    """What the counted steps of a turn took.

    Attributes:
        seconds: by the clock.
        cpu_s: of the process, all its threads together.
    """

    seconds: float
    cpu_s: float


class Turns(turns.Turns):
    """A program's side."""

    def begun(self) -> None:
        """The steps that count begin."""
        self._since = _now()

    def measured(self) -> list[float]:
        """Return the values of a `Turn`."""
        return [end - start for end, start in zip(_now(), self._since, strict=True)]


def _now() -> Turn:
    return Turn(time.perf_counter(), time.process_time())


class Program(turns.Program):
    """The other side."""

    def turn(self, steps: int) -> Turn:
        """Let it do one step and then so many, and return what these took.

        Raises:
            SystemExit: the program ended.
        """
        self.begin(steps)
        try:
            return Turn(*self.end_of_turn())
        except turns.Ended as error:
            raise SystemExit(f"{self._process.args} ended:\n{error}") from None


def ratios(ours: Sequence[Any], bare: Sequence[Any]) -> list[float]:
    """Return the speed of ours as a share of the bare loop's, of each round."""
    return [loop / own for own, loop in zip(ours, bare, strict=True)]
