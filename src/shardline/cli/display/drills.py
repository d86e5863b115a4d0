"""What `drill` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from shardline.cli.display.tables import show_rows
from shardline.cli.display.terminal import say

if TYPE_CHECKING:
    from shardline.drills.outcome import Outcome

_FIGURES = ("steps_done", "steps_lost", "seconds_lost", "attempts", "commands")


def show_drill(outcomes: Sequence["Outcome"], certificate: Path | None) -> None:
    """Print a column for each run, why a run did not survive, and the kept folder."""
    sizes = (f"{one.ranks} rank{'s' if one.ranks > 1 else ''}" for one in outcomes)
    rows: list[list[str | Text]] = [["profile", *(one.profile for one in outcomes)]]
    styles = ("bold red" if one.reasons else "green" for one in outcomes)
    verdicts = [Text(one.verdict, style) for one, style in zip(outcomes, styles, strict=True)]
    rows.append(["verdict", *verdicts])
    for figure in _FIGURES:
        values = (getattr(one, figure) for one in outcomes)
        shown = ("-" if value is None else str(value) for value in values)
        rows.append([figure.replace("_", " "), *shown])
    rows.append(["the same", *map(_compared, outcomes)])
    say("")
    show_rows((outcomes[0].drill, *sizes), rows)
    for one in outcomes:
        for reason in one.reasons:
            say(f"{one.ranks} ranks: {reason}")
    if certificate:
        say(f"certificate: {certificate}")
    if kept := outcomes[0].folder:
        say(f"kept: {kept}")


def _compared(one: "Outcome") -> str:
    return ", ".join(name if is_same else f"not {name}" for name, is_same in one.compared.items())
