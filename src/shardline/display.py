"""What the `shardline` command puts on a terminal, or into a pipe."""

import json
import sys
import time
from collections.abc import Sequence
from os import environ
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.status import Status
from rich.table import Table
from rich.text import Text

from shardline.garbage import Garbage
from shardline.states import State, last_step
from shardline.verify import Verdict, count
from shardline.why import Explanation
from shardline.workflow import making

_STYLES = {
    State.DONE: "green",
    State.TRAINED: "cyan",
    State.IN_PROGRESS: "yellow",
    State.STALE: "magenta",
    State.NEW: "blue",
}


def _console() -> Console:
    # a pipe has no width, so its tables are as wide as they need to be; a dumb
    # terminal gets 80 unless width and height are both named
    fits = sys.stdout.isatty() or "COLUMNS" in environ
    width, height = (None, None) if fits else (1000, 25)
    return Console(width=width, height=height, highlight=False, markup=False, emoji=False)


def say(line: str | Text, style: str = "") -> None:
    """Print a line as it is, however long."""
    _console().print(line, style=style, soft_wrap=True)


def say_json(document: object) -> None:
    """Print JSON; paths as text, dataclasses by their fields."""
    print(
        json.dumps(
            document,
            indent=1,
            ensure_ascii=False,
            default=lambda value: str(value) if isinstance(value, Path) else vars(value),
        )
    )


def waiting_for(what: str) -> Status:
    """Return a context that shows, on a terminal alone, what is being done."""
    return _console().status(what)


def _table(*columns: str, show_header: bool = True) -> Table:
    table = Table(
        box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0), show_header=show_header
    )
    for column in columns:
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    return table


def show_runs(records: Sequence[dict[str, Any]]) -> None:
    """Print one line per run, and how many there are of each state.

    Args:
        records: from `shardline.states.describe_runs`.
    """
    table = _table("run", "dataset", "model", "state", "headline", "identity")
    for record in records:
        step = "" if record["step"] is None else f", step {record['step']:,}"
        table.add_row(
            *(record[key] for key in ("run", "dataset", "model")),
            Text(record["state"] + step, style=_STYLES[record["state"]]),
            _headline(record["headline"]),
            Text(record["identity"], style="dim"),
        )
    _console().print(table)
    states = [record["state"] for record in records]
    tally = (f"{states.count(state)} {state}" for state in State if state in states)
    say(f"\n{count(len(records), 'run')}: {', '.join(tally)}")


def _headline(headline: dict[str, Any] | None) -> Text:
    if headline is None:
        return Text("-", style="dim")
    if headline["value"] is None:
        return Text("unreadable", style="red")
    return Text(f"{headline['metric']} {headline['value']:#.4g}")


def show_explanation(explanation: Explanation, store: Path) -> None:
    """Print what state a run is in, and the causes.

    Args:
        store: root of the training checkpoints.
    """
    run, state, compared = explanation.run, explanation.state, explanation.compared_with
    say(Text.assemble((run.id, "bold"), (f" {_verdict(explanation, store)}", _STYLES[state])))
    if compared:
        say(f"compared with {compared} ({_age(compared.stat().st_mtime)})", style="dim")
    elif state is State.DONE:
        say(f"  {run.folder / 'model.safetensors'}\n  {run.evaluation}")
    if explanation.causes:
        table = _table("cause", "difference", show_header=False)
        told = ""
        for cause in explanation.causes:
            kind = "" if cause.kind == told else cause.kind
            table.add_row(Text(f"  {kind}", style="dim"), cause.text)
            told = cause.kind
        say("")
        _console().print(table)


def _verdict(explanation: Explanation, store: Path) -> str:
    match explanation.state:
        case State.DONE:
            return "is fresh: nothing that it was made from has changed"
        case State.TRAINED if explanation.compared_with:
            return "is trained, but its evaluation is stale"
        case State.TRAINED:
            return "is trained, but was never evaluated"
        case State.IN_PROGRESS:
            step = last_step(explanation.run, store)
            place = f"near step {step:,}" if step else "where it stopped"
            return f"is not finished: training continues {place}"
        case State.STALE:
            return "is stale"
        case State.NEW if explanation.compared_with:
            return "is new; the nearest other run differs in this"
        case State.NEW:
            return "is new: nothing was trained before"


def _age(timestamp: float) -> str:
    seconds = max(0.0, time.time() - timestamp)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(int(seconds // length), unit)} ago"
    return "just now"


def show_garbage(garbage: Sequence[Garbage], last_results: Sequence[str], remedy: str) -> None:
    """Print what may go, with sizes, ages and reasons.

    Args:
        last_results: runs that would be left without any trained model.
        remedy: how to delete it, after the total.
    """
    if not garbage:
        say("Nothing to delete: the config names all that is there.")
        return
    table = _table("path", "size", "written", "why it may go")
    for item in garbage:
        size = "link" if item.path.is_symlink() else decimal(item.bytes)
        table.add_row(str(item.path), size, Text(_age(item.written), style="dim"), item.reason)
    _console().print(table)
    total = decimal(sum(item.bytes for item in garbage))
    say(f"\n{count(len(garbage), 'item')}, {total}{remedy}")
    if last_results:
        names = ", ".join(last_results)
        say(f"among them the only trained models of {names}, which are stale", style="yellow")


def say_freed(num_bytes: int) -> None:
    """Print what a deletion freed."""
    say(f"freed {num_bytes:,} bytes ({decimal(num_bytes)})")


def show_verdict(verdict: Verdict, width: int) -> None:
    """Print one line for what was verified, and one for each problem.

    Args:
        width: length of the longest id, in characters.
    """
    mark, style = ("BAD", "bold red") if verdict.problems else ("ok ", "green")
    name, summary = f"{verdict.id:{width}}", (f"  {verdict.summary}", "dim")
    say(Text.assemble((mark, style), f"  {verdict.kind:7}  ", (name, "bold"), summary))
    for problem in verdict.problems:
        say(f"     {problem}")


def show_repair(verdict: Verdict, parts: Sequence[str], manifest: Path) -> None:
    """Print what a repair dropped, and the command that rebuilds it."""
    dropped = f"{count(len(verdict.bad_shards), 'bad shard')} and " if verdict.bad_shards else ""
    say(f"\ndropped {dropped}the manifest")
    say(f"to rebuild {count(len(parts), 'part')} and seal the dataset again, run")
    say(f"  {making(manifest)}")
