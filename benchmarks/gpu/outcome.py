"""What a check found: a line of the table, and never more than what was run."""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["passed", "failed", "measured", "not run"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line that a check prints.

    Attributes:
        name: of what was looked at.
        state: `measured`: there is no goal for it on this device.
        text: what was found, or why it was not run.
        figures: the numbers behind it.
    """

    name: str
    state: State
    text: str
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.state:8} {self.name}: {self.text}"


class NotRun(Exception):
    """A check cannot be run here; the text is the reason."""


class Wrong(Exception):
    """What a check looked at is not as it has to be."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When the suite has to end.

    Attributes:
        end: by the monotonic clock.
    """

    end: float

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 where there are none."""
        return max(0.0, self.end - time.monotonic())

    def end_of(self, budget_s: float) -> float:
        """Return when a check that begins now has to end, by the monotonic clock."""
        return min(time.monotonic() + budget_s, self.end)


def summary(lines: list[Line]) -> str:
    """Return how many lines have each state, and the names of those that were not run."""
    counts = {state: [line.name for line in lines if line.state == state] for state in _ORDER}
    text = ", ".join(f"{len(names)} {state}" for state, names in counts.items())
    return text + (f": {', '.join(counts['not run'])}" if counts["not run"] else "")


_ORDER: tuple[State, ...] = ("passed", "failed", "measured", "not run")


def table(lines: list[Line], heading: str) -> str:
    """Return the lines as a Markdown table."""
    rows = [
        f"| {line.name} | {line.state} | {' '.join(line.text.split()).replace('|', '/')} |"
        for line in lines
    ]
    return "\n".join(
        [
            heading,
            "",
            "| check | state | found |",
            "| --- | --- | --- |",
            *rows,
            "",
            summary(lines),
            "",
        ]
    )
