"""Output of `ls --study`."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import say
from shardline.config.sweeps import SweepPlan
from shardline.results.findings import count

_STYLES = {
    "done": "green", "stopped": "dim", "waiting": "yellow", "failed": "red", "excluded": "dim",
    "proposed": "yellow", "new": "blue",
}  # fmt: skip


def show_trials(plan: SweepPlan, records: Sequence[dict[str, Any]]) -> None:
    """Print one line per trial, and the number of trials in each state.

    Args:
        records: Records from `shardline.results.sweeps.describe.describe_trials`.
    """
    metric, keys = plan.settings.objective.metric, plan.space.keys
    rows = [
        [
            str(record["trial"]) + " *" * record["best"],
            *(_shown(record["settings"].get(key)) for key in keys),
            Text(record["state"], style=_STYLES[record["state"]]),
            "-" if record["value"] is None else f"{record['value']:#.4g}",
            *([_reached(plan, record)] if plan.rungs else []),
            Text(", ".join(record["runs"]), style="dim"),
        ]
        for record in records
        if record["state"] != "new"
    ]
    reached = [f"{plan.unit}s"] if plan.rungs else []
    show_rows(("trial", *keys, "state", metric, *reached, "identity"), rows)
    states = [record["state"] for record in records]
    tally = (f"{states.count(state)} {state}" for state in _STYLES if state in states)
    say(f"\n{count(len(records), 'trial')}: {', '.join(tally)}; * is the best by validation")
    for line in rung_lines(plan, records):
        say(line)
    for record in records:
        if record["failure"]:
            say(f"trial {record['trial']} {record['state']}: {record['failure']}")


def rung_lines(plan: SweepPlan, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per rung: how many trials have ended there, and the best of them."""
    mode, found = plan.settings.objective.mode, []
    for rung, length in enumerate(plan.rungs):
        values = {one["trial"]: one["values"][rung] for one in records if len(one["values"]) > rung}
        if values:
            best = (min if mode == "min" else max)(values, key=values.__getitem__)
            ended = count(len(values), "trial")
            found.append(
                f"{count(length, plan.unit)}: {ended}, the best is {best} ({values[best]:.4g})"
            )
    return found


def _reached(plan: SweepPlan, record: dict[str, Any]) -> str:
    return str(plan.rungs[record["rung"]]) if record["values"] else "-"


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
