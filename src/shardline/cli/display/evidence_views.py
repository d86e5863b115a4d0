"""Output of `replay`, `diff`, `lineage`, `accept` and `export`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import ENDLESS, console, say
from shardline.config.causes import Cause
from shardline.results.accept.candidates import Candidate
from shardline.results.diff import Change, Comparison
from shardline.results.findings import count
from shardline.results.lineage.lineage import Lineage
from shardline.results.replay.replay_run import Replay
from shardline.results.replay.replayed_numbers import DIFFERENT

if TYPE_CHECKING:
    from shardline.results.export.export_run import Exported

_SHOWN = 20  # printed inputs of an action; --json lists all


def show_causes(causes: Iterable[Cause]) -> None:
    """Print differences, grouped by kind."""
    rows = []
    previous = ""
    for cause in causes:
        kind = "" if cause.kind == previous else cause.kind
        rows.append((Text(f"  {kind}", style="dim"), cause.text))
        previous = cause.kind
    show_rows(("cause", "difference"), rows, show_header=False)


def show_candidates(candidates: Sequence[Candidate]) -> None:
    """Print results that can be accepted, with their differences."""
    if not candidates:
        say("Nothing to accept: no earlier result differs only in this.")
    for one in candidates:
        say(Text.assemble((one.earlier_title, "bold"), " for ", (one.title, "bold")))
        if one.causes:
            show_causes(one.causes)
        else:
            say("  no known difference: the identity documents differ only in the dataset's digest")
        say("")


def show_replay(replay: Replay) -> None:
    """Print each recorded number beside the replayed one, and a verdict."""
    for what, changes in (("code has", replay.code), ("packages have", replay.environment)):
        if changes:
            say(f"the {what} changed since the evaluation: {'; '.join(changes)}", style="yellow")
    rows = []
    for number in replay.numbers:
        verdict = number.verdict
        if verdict != "equal" and number.difference is not None:
            verdict += f" by {number.difference:.2g}"
        style = "bold red" if number.verdict == DIFFERENT else "green"
        rows.append((number.name, number.recorded, number.replayed, Text(verdict, style=style)))
    show_rows(("number", "recorded", "replayed", "verdict"), rows)
    allowed = f"within {replay.tolerance:g}" if replay.tolerance else "exactly"
    bad = sum(number.verdict == DIFFERENT for number in replay.numbers)
    if bad:
        say(
            f"\n{replay.title}: {bad} of {count(len(replay.numbers), 'number')} not replayed {allowed}"
        )
    else:
        say(f"\n{replay.title}: every number of {replay.evaluation} is replayed {allowed}")


def show_comparison(comparison: Comparison) -> None:
    """Print the differences between two runs and between their metrics."""
    say(Text.assemble((comparison.old, "bold"), " -> ", (comparison.new, "bold")))
    causes = [*comparison.causes, *comparison.circumstances]
    if causes:
        say("")
        show_causes(causes)
    else:
        say("  no difference in settings, data, code or environment")
    if comparison.metrics:
        say("")
        _show_metrics(comparison.metrics)


def _show_metrics(changes: Sequence[Change]) -> None:
    rows = []
    for change in changes:
        both = change.old is not None and change.new is not None
        interval = "-"
        if change.interval:
            interval = " to ".join(f"{end:+.4g}" for end in change.interval)
        title = (
            f"{change.metric} (headline, {change.headline})" if change.headline else change.metric
        )
        difference = f"{(change.new or 0) - (change.old or 0):+.4g}" if both else "-"
        old, new = _number(change.old), _number(change.new)
        rows.append((title, old, new, difference, interval, change.verdict))
    show_rows(("metric", "first", "second", "difference", "95 % interval", "verdict"), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def show_lineage(lineage: Lineage) -> None:
    """Print the tree of files and actions behind a file."""
    tree = Tree(_file_line(lineage, lineage.file))
    _grow(tree, lineage, lineage.file, set())
    out = console()
    out.print(tree, soft_wrap=out.width >= ENDLESS)
    if lineage.problem:
        say(f"\n{lineage.problem}", style="bold red")


def _file_line(lineage: Lineage, name: str) -> Text:
    return Text.assemble(name, (f"  {lineage.files[name].short_digest}".rstrip(), "dim"))


def _grow(tree: Tree, lineage: Lineage, name: str, seen: set[str]) -> None:
    """Add the inputs of a file; only name what the tree contains already."""
    file = lineage.files[name]
    if file.members and name in seen:
        tree.add(Text("as above", style="dim"))
    else:
        seen.add(name)
        _add(tree, lineage, file.members, seen)
    if file.made_by in seen:
        tree.add(Text.assemble((file.made_by, "cyan"), ("  as above", "dim")))
    elif file.made_by:
        seen.add(file.made_by)
        action = lineage.actions[file.made_by]
        circumstances = f"  {action.circumstances}".rstrip()
        branch = tree.add(Text.assemble((action.id, "cyan"), (circumstances, "dim")))
        _add(branch, lineage, action.files_read, seen)


def _add(tree: Tree, lineage: Lineage, names: Sequence[str], seen: set[str]) -> None:
    for name in names[:_SHOWN]:
        _grow(tree.add(_file_line(lineage, name)), lineage, name, seen)
    if (more := len(names) - _SHOWN) > 0:
        tree.add(Text(f"and {more:,} more: --json lists them", style="dim"))


def show_export(exported: "Exported") -> None:
    """Print the written files and their difference from the original."""
    for name in exported.files:
        say(f"  {exported.folder / name}")
    say(
        f"checked on {exported.check.rows:,} {exported.check.split} rows: its outputs differ from the original's by "
        f"{exported.check.max_difference:.2g} at most, {exported.check.allowed:.2g} is allowed"
    )
