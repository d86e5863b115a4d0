"""What a drill shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from shardline.display.terminal import console, say, table_of

if TYPE_CHECKING:
    from shardline.drills.judge import Outcome

_COLUMNS = (
    "drill", "profile", "ranks", "verdict", "steps done", "steps lost", "seconds lost", "attempts",
    "commands", "the same",
)  # fmt: skip


def show_drill(outcomes: Sequence["Outcome"], certificate: Path | None) -> None:
    """Print a line for each run, why one did not survive, and where files are that were kept."""
    table = table_of(*_COLUMNS)
    for one in outcomes:
        style = "bold red" if one.reasons else "green"
        same = [f"{name}{'' if ok else ': no'}" for name, ok in one.compared.items()]
        counts = (one.steps_done, one.steps_lost, one.seconds_lost, one.attempts, one.commands)
        table.add_row(
            one.drill, one.profile, str(one.ranks), Text(one.verdict, style=style),
            *("-" if count is None else str(count) for count in counts), ", ".join(same),
        )  # fmt: skip
    console().print("", table)
    for one in outcomes:
        for reason in one.reasons:
            say(f"{one.ranks} ranks: {reason}")
    if certificate:
        say(f"certificate: {certificate}")
    if kept := outcomes[0].folder:
        say(f"kept: {kept}")
