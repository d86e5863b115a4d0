"""Output of `ls`, `why`, `gc`, `rm`, `rerun` and `verify`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.text import Text

from shardline.cli.display.evidence_views import show_causes
from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import say
from shardline.core.package import making
from shardline.core.visible import from_here
from shardline.results.findings import VerifyResult, count
from shardline.results.gc import Garbage
from shardline.results.outcomes import describe_progress
from shardline.results.rerun import Rerun
from shardline.results.staleness import Explanation
from shardline.results.states import State, last_step

_SHOWN = 3
_STYLES = {
    State.DONE: "green",
    State.TRAINED: "cyan",
    State.RUNNING: "yellow",
    State.FAILED: "red",
    State.STOPPED: "yellow",
    State.STALE: "magenta",
    State.NEW: "blue",
}


def show_runs(records: Sequence[dict[str, Any]]) -> None:
    """Print one line per run, and the number of runs in each state.

    Args:
        records: Records from `shardline.results.states.describe_runs`.
    """
    rows = []
    for record in records:
        step = "" if record["step"] is None else f", step {record['step']:,}"
        if record["progress"]:
            step = f", {describe_progress(record['progress'])}"
        style = _STYLES[record["state"]]
        if record["warnings"]:
            step, style = f"{step}, warning", "yellow"
        rows.append(
            [
                *(record[key] for key in ("run", "dataset", "model")),
                Text(record["state"] + step, style=style),
                _headline(record["headline"]),
                Text(record["id"], style="dim"),
            ]
        )
    show_rows(("run", "dataset", "model", "state", "headline", "identity"), rows)
    states = [record["state"] for record in records]
    tally = (f"{states.count(state)} {state}" for state in State if state in states)
    say(f"\n{count(len(records), 'run')}: {', '.join(tally)}")
    for text in dict.fromkeys(_mean(mean) for one in records if (mean := one.get("mean"))):
        say(text)
    for record in records:
        if failure := record["failure"]:
            say(Text.assemble((f"\n{record['run']}", "bold"), " failed: ", failure["sentence"]))
            say(f"  log: {failure['log']}", style="dim")
        for warning in record["warnings"]:
            say(Text.assemble((f"\n{record['run']}", "bold"), " warning: ", warning["sentence"]))


def _mean(mean: dict[str, Any]) -> str:
    found = f"{mean['name']}: {mean['metric']} {mean['mean']:#.4g}, mean of {mean['over']}"
    if mean["interval"] is None:
        return found
    low, high = mean["interval"]
    return f"{found}, 95 % interval {low:#.4g} to {high:#.4g}"


def _headline(headline: dict[str, Any] | None) -> Text:
    if headline is None:
        return Text("-", style="dim")
    if headline["value"] is None:
        return Text("unreadable", style="red")
    return Text(f"{headline['metric']} {headline['value']:#.4g}")


def show_explanation(explanation: Explanation) -> None:
    """Print the state of a run, with the causes."""
    run, state, compared = explanation.run, explanation.state, explanation.compared_with
    say(
        Text.assemble(
            (run.name, "bold"),
            (f" ({run.id})", "dim"),
            (f" {_verdict(explanation)}", _STYLES[state]),
        )
    )
    if explanation.failure:
        say(f"  {explanation.failure.sentence}")
        say(f"  log: {explanation.failure.log}", style="dim")
    if compared:
        say(f"compared with {compared} ({_age(compared.stat().st_mtime)})", style="dim")
    elif state is State.DONE:
        say(f"  {run.model}\n  {run.evaluation}")
    if explanation.variables:
        names = ", ".join(explanation.variables)
        say(
            f"  recorded with other values than here: {names}; they make nothing stale",
            style="dim",
        )
    if explanation.causes:
        say("")
        show_causes(explanation.causes)
    if explanation.length:
        say(f"\nthe training {explanation.length}")
    if explanation.edited:
        say(f"\n{explanation.edited}", style="yellow")


def _verdict(explanation: Explanation) -> str:
    match explanation.state:
        case State.DONE:
            return "is fresh: nothing that it was made from has changed"
        case State.RUNNING if explanation.progress:
            return f"trains now: {describe_progress(explanation.progress)}"
        case State.FAILED if explanation.failure:
            return f"failed in {explanation.failure.rule} ({explanation.failure.when})"
        case State.TRAINED if explanation.compared_with:
            return "is trained, but its evaluation is stale"
        case State.TRAINED:
            return "is trained, but was never evaluated"
        case State.STOPPED:
            step = last_step(explanation.run)
            place = f"near step {step:,}" if step else "where it stopped"
            return f"is not finished: training continues {place}"
        case State.STALE:
            return "is stale"
        case State.NEW if explanation.compared_with:
            return "is new; differences from the nearest other run:"
        case State.NEW:
            return "is new: no run was trained before"
        case _:  # the run ended or restarted since its state was read
            return f"was {explanation.state.value} a moment ago; repeat the command"


def _age(timestamp: float) -> str:
    seconds = max(0.0, time.time() - timestamp)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(int(seconds // length), unit)} ago"
    return "just now"


def show_garbage(garbage: Sequence[Garbage], last_results: Sequence[str], remedy: str) -> None:
    """Print items that may be deleted, with sizes, ages and reasons.

    Args:
        last_results: Runs that would lose their only trained model.
        remedy: Text after the total: how to delete the items.
    """
    if not garbage:
        say("Nothing to delete: the config uses all files.")
        return
    rows = [
        (
            from_here(str(item.path)),
            "link" if item.path.is_symlink() else decimal(item.bytes),
            Text(_age(item.written), style="dim"),
            f"{item.reason}; loses {item.loses}" if item.loses else item.reason,
        )
        for item in garbage
    ]
    show_rows(("path", "size", "written", "reason"), rows)
    total = decimal(sum(item.bytes for item in garbage))
    say(f"\n{count(len(garbage), 'item')}, {total}{remedy}")
    if last_results:
        names = ", ".join(last_results)
        say(
            f"the list contains the only trained models of {names}, which are stale", style="yellow"
        )


def say_freed(num_bytes: int) -> None:
    """Print the size of the deleted files."""
    say(f"freed {num_bytes:,} bytes ({decimal(num_bytes)})")


def show_rerun(rerun: Rerun) -> None:
    """Print whether a rerun gave the same weights and values."""
    if rerun.is_equal:
        say(f"{rerun.title}: the same weights to the last bit ({count(rerun.tensors, 'tensor')})")
    else:
        largest = "" if rerun.largest is None else f", by at most {rerun.largest:.2g}"
        names = ", ".join(rerun.other_tensors[:_SHOWN])
        of = f"{len(rerun.other_tensors)} of {count(rerun.tensors, 'tensor')}"
        say(f"{rerun.title}: other weights in {of}{largest} ({names})", style="bold red")
    for text in rerun.other_values[:_SHOWN]:
        say(f"  {text}")
    others = len(rerun.other_values) or "none"
    say(
        f"{others} of {rerun.values} recorded values differ; the rerun is in {from_here(str(rerun.folder))}"
    )


def show_verdict(verdict: VerifyResult, title: str, width: int) -> None:
    """Print one line for a verified item, and one for each problem.

    Args:
        title: Name and id of the item.
        width: Length of the longest title, in characters.
    """
    mark, style = ("BAD", "bold red") if verdict.problems else ("ok ", "green")
    name, summary = f"{title:{width}}", (f"  {verdict.summary}", "dim")
    say(Text.assemble((mark, style), f"  {verdict.kind:7}  ", (name, "bold"), summary))
    for problem in verdict.problems:
        say(f"     {problem}")


def show_repair(verdict: VerifyResult, parts: Sequence[str], manifest: Path) -> None:
    """Print the files that a repair deleted, and the command that rebuilds them."""
    dropped = f"{count(len(verdict.bad_shards), 'bad shard')} and " if verdict.bad_shards else ""
    say(f"\ndropped {dropped}the manifest")
    say(f"to rebuild {count(len(parts), 'part')} and seal the dataset again, run")
    say(f"  {making(manifest)}")
