"""The `shardline` command: what there is, why it is stale, what may go, whether it is undamaged.

What a command shows is computed in `why` and `upkeep`; here it is put on a
terminal, or printed as JSON. Heavy modules are imported by the commands that
need them, so that `--help` answers at once.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from shardline import __version__
from shardline.errors import ConfigError, DataError, ShardlineError

if TYPE_CHECKING:
    from shardline.config import Project, Run
    from shardline.upkeep import Garbage, Verdict
    from shardline.why import Explanation

EXIT_CODES = {
    0: "all is well",
    1: "something else failed, or a deletion was declined",
    2: "the config, the run table or the command line is wrong",
    3: "data or results are missing, damaged or cannot be written",
    4: "the ranks of a training cannot be started",
}
_STYLES = {
    "done": "green",
    "trained": "cyan",
    "in progress": "yellow",
    "stale": "magenta",
    "new": "blue",
}
_EPILOG = "\n".join(
    ["[bold]Exit codes[/bold]", *(f"  {code}  {text}" for code, text in EXIT_CODES.items())]
)
_PIPED_WIDTH = 1000  # a pipe has no width: tables are as wide as they need to be


class _Group(TyperGroup):
    """Ends a user's mistake with its one sentence and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ShardlineError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="shardline",
    cls=_Group,
    epilog=_EPILOG,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a bug of ours keeps its plain traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)
_AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, for programs.")]


def main() -> None:
    """Run the `shardline` command."""
    app(prog_name="shardline")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="Config that names the runs.")
    ] = Path("config/config.yaml"),
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Look after the runs of a Shardline project; call it in the project's folder.

    Runs are made by `snakemake`. Nothing here trains, and only `gc --delete` deletes.
    """
    context.obj = config


def _load(context: typer.Context) -> "Project":
    from shardline.config import load_project

    return load_project(config_file=context.obj)


def _console() -> Console:
    fixed = sys.stdout.isatty() or "COLUMNS" in environ
    width, height = (
        (None, None) if fixed else (_PIPED_WIDTH, 25)
    )  # a dumb terminal gets 80 unless both are named
    return Console(width=width, height=height, highlight=False, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    return table


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- ls -----------------------------------------------------------------------------------------


@app.command("ls", epilog=_EPILOG)
def list_runs(context: typer.Context, as_json: _AsJson = False) -> None:
    """List the runs of the config: state, headline metric, identity.

    [green]done[/green]         trained and evaluated
    [cyan]trained[/cyan]      trained; the evaluation is missing or stale
    [yellow]in progress[/yellow]  training has begun and continues from its checkpoint
    [magenta]stale[/magenta]        sealed under an earlier identity only: `shardline why RUN`
    [blue]new[/blue]          nothing of this name is sealed
    """
    project = _load(context)
    records = _records(project)
    if as_json:
        _print_json(records)
        return
    console = _console()
    table = _table("run", "dataset", "model", "state", "headline", "identity")
    for record in records:
        table.add_row(
            record["run"], record["dataset"], record["model"], _state_text(record),
            _headline_text(record["headline"]), Text(record["identity"], style="dim"),
        )  # fmt: skip
    console.print(table)
    console.print(f"\n{_tally(records)}", soft_wrap=True)
    if project.report.exists():
        console.print(f"report: {project.report}", soft_wrap=True)


def _records(project: "Project") -> list[dict[str, Any]]:
    from shardline.why import State, last_step, sealed_names, state_of

    names = sealed_names()
    records = []
    for run in project.runs.values():
        state = state_of(run, project.store, names)
        records.append(
            {
                "run": run.name,
                "id": run.id,
                "identity": run.digest,
                "dataset": run.dataset.name,
                "model": run.row.model,
                "state": state.value,
                "step": last_step(run, project.store) if state is State.IN_PROGRESS else None,
                "headline": _headline(run) if state is State.DONE else None,
                "folder": str(run.folder),
            }
        )
    return records


def _headline(run: "Run") -> dict[str, Any] | None:
    from shardline.files import read_json

    try:
        headline = read_json(run.evaluation, remedy="")["headline"]
        return {"metric": str(headline["metric"]), "value": float(headline["value"])}
    except (DataError, KeyError, TypeError, ValueError):
        return {"metric": "unreadable", "value": None}


def _headline_text(headline: dict[str, Any] | None) -> Text:
    if headline is None:
        return Text("-", style="dim")
    if headline["value"] is None:
        return Text("unreadable", style="red")
    return Text(f"{headline['metric']} {headline['value']:#.4g}")


def _state_text(record: dict[str, Any]) -> Text:
    step = "" if record["step"] is None else f", step {record['step']:,}"
    return Text(record["state"] + step, style=_STYLES[record["state"]])


def _tally(records: Sequence[dict[str, Any]]) -> str:
    counts = {state: sum(record["state"] == state for record in records) for state in _STYLES}
    shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{_count(len(records), 'run')}: {shown}"


# --- why ----------------------------------------------------------------------------------------


@app.command("why", epilog=_EPILOG)
def tell_why(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run.")],
    as_json: _AsJson = False,
) -> None:
    """Say what makes a run stale or fresh, by cause.

    The run's identity document is compared with the nearest older one:
    of the same name and sealed where there is one, then the one with the
    fewest differences.
    """
    from shardline.why import explain

    project = _load(context)
    explanation = explain(project, _find_run(project, run))
    if as_json:
        _print_json(_explanation_document(explanation))
        return
    _show_explanation(explanation, _console(), project)


def _find_run(project: "Project", wanted: str) -> "Run":
    if wanted in project.runs:
        return project.runs[wanted]
    for run in project.runs.values():
        if run.name == wanted:
            return run
    names = [run.name for run in project.runs.values()]
    raise ConfigError(
        f'the config names no run "{wanted}"; {_suggest(wanted, [*names, *project.runs])}'
    )


def _suggest(wanted: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(wanted, known, n=1, cutoff=0.4)
    return f'did you mean "{nearest[0]}"?' if nearest else "`shardline ls` lists them"


def _explanation_document(explanation: "Explanation") -> dict[str, Any]:
    compared = explanation.compared_with
    return {
        "run": explanation.run.id,
        "state": explanation.state.value,
        "compared_with": str(compared) if compared else None,
        "causes": [vars(cause) for cause in explanation.causes],
    }


def _show_explanation(explanation: "Explanation", console: Console, project: "Project") -> None:
    run = explanation.run
    style = _STYLES[explanation.state.value]
    title = Text.assemble((run.id, "bold"), (f" {_verdict(explanation, project)}", style))
    console.print(title, soft_wrap=True)
    if explanation.compared_with:
        written = _age(explanation.compared_with.stat().st_mtime)
        console.print(
            Text(f"compared with {explanation.compared_with} ({written})", style="dim"),
            soft_wrap=True,
        )
    elif explanation.state.value == "done":
        for path in (run.folder / "model.safetensors", run.evaluation):
            console.print(f"  {path}", soft_wrap=True)
    if explanation.causes:
        table = _table("cause", "difference")
        table.show_header = False
        kinds = [cause.kind for cause in explanation.causes]
        for i, cause in enumerate(explanation.causes):
            first = i == 0 or kinds[i - 1] != cause.kind
            table.add_row(Text(f"  {cause.kind if first else ''}", style="dim"), Text(cause.text))
        console.print()
        console.print(table)


def _verdict(explanation: "Explanation", project: "Project") -> str:
    from shardline.why import last_step

    match explanation.state.value:
        case "done":
            return "is fresh: nothing that it was made from has changed"
        case "trained" if explanation.compared_with:
            return "is trained, but its evaluation is stale"
        case "trained":
            return "is trained, but was never evaluated"
        case "in progress":
            step = last_step(explanation.run, project.store)
            return "is not finished: training continues " + (
                f"near step {step:,}" if step else "where it stopped"
            )
        case "stale":
            return "is stale"
        case _ if explanation.compared_with:
            return "is new; the nearest other run differs in this"
        case _:
            return "is new: nothing was trained before"


def _age(timestamp: float) -> str:
    seconds = max(0.0, time.time() - timestamp)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{_count(int(seconds // length), unit)} ago"
    return "just now"


# --- gc -----------------------------------------------------------------------------------------


@app.command("gc", epilog=_EPILOG)
def collect_garbage(
    context: typer.Context,
    delete: Annotated[
        bool, typer.Option("--delete", metavar="", help="Delete what is listed.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", metavar="", help="Do not ask before deleting.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """List, or delete, what results and store hold that the config no longer names.

    A deleted result is computed again when its settings come back. A store
    that several projects share holds the data of all of them, and this
    command knows the config of one: read the list before you delete.
    """
    from shardline import upkeep

    project = _load(context)
    garbage = upkeep.find_garbage(project)
    if not as_json:
        _show_garbage(project, garbage, _console(), hint=not delete)
    if delete and garbage:
        _delete(project, garbage, yes=yes, ask=not as_json)
    if as_json:
        items = [{**vars(item), "path": str(item.path)} for item in garbage]
        _print_json(
            {"deleted": delete, "bytes": sum(item.bytes for item in garbage), "items": items}
        )


def _show_garbage(
    project: "Project", garbage: Sequence["Garbage"], console: Console, *, hint: bool
) -> None:
    from shardline.upkeep import last_results

    if not garbage:
        console.print("Nothing to delete: the config names all that is there.")
        return
    table = _table("path", "size", "written", "why it may go")
    for item in garbage:
        size = decimal(item.bytes) if not item.path.is_symlink() else "link"
        table.add_row(str(item.path), size, Text(_age(item.written), style="dim"), item.reason)
    console.print(table)
    total = decimal(sum(item.bytes for item in garbage))
    remedy = "; `shardline gc --delete` deletes them" if hint else ""
    console.print(f"\n{_count(len(garbage), 'item')}, {total}{remedy}", soft_wrap=True)
    if names := last_results(project, garbage):
        warning = f"among them the only trained models of {', '.join(names)}, which are stale"
        console.print(warning, style="yellow", soft_wrap=True)


def _delete(project: "Project", garbage: Sequence["Garbage"], *, yes: bool, ask: bool) -> None:
    from shardline import upkeep

    upkeep.check_unlocked(project.workdir)
    if not yes:
        if not (ask and sys.stdin.isatty()):
            raise ShardlineError(
                "gc --delete asks before it deletes and here is nobody to ask; add --yes"
            )
        typer.confirm("Delete them?", abort=True)
        upkeep.check_unlocked(project.workdir)  # the answer may have taken its time
    freed = 0
    try:
        for item in upkeep.delete(garbage):
            freed += item.bytes
    finally:
        if ask:
            _console().print(f"freed {freed:,} bytes ({decimal(freed)})", soft_wrap=True)


# --- verify -------------------------------------------------------------------------------------


@app.command("verify", epilog=_EPILOG)
def verify(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|DATASET",
            help="Names or ids; left out, all that exists of the config.",
        ),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Hold shards and sealed files against manifests, identities and provenance.

    Every byte of the shards is read. Exit code 3 if anything is wrong.
    """
    project = _load(context)
    datasets, runs = _targets(project, names or [])
    console = _console()
    verdicts = []
    width = max(map(len, (*datasets, *runs)), default=0)
    for verdict in _verdicts(project, datasets, runs, console):
        verdicts.append(verdict)
        if not as_json:
            _show_verdict(verdict, width, console)
    bad = sum(bool(verdict.problems) for verdict in verdicts)
    if as_json:
        _print_json([vars(verdict) for verdict in verdicts])
    elif not verdicts:
        console.print("Nothing to verify: nothing that the config names exists yet.")
    elif len(verdicts) > 1 or bad:
        console.print(f"\n{len(verdicts)} verified, {bad or 'none'} with problems", soft_wrap=True)
    if bad:
        raise typer.Exit(DataError.exit_code)


def _targets(project: "Project", names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the ids of the datasets and runs that are meant; ids of earlier ones count if they exist."""
    from shardline.config.project import RESULTS

    if not names:
        return (
            [dataset.id for dataset in project.datasets.values() if dataset.manifest.exists()],
            [run.id for run in project.runs.values() if (run.folder / "run.json").exists()],
        )
    datasets: dict[str, None] = {}
    runs: dict[str, None] = {}
    for name in names:
        new_datasets = [d.id for d in project.datasets.values() if name in (d.name, d.id)]
        new_runs = [r.id for r in project.runs.values() if name in (r.name, r.id)]
        if not new_datasets and (RESULTS / "datasets" / name / "manifest.json").exists():
            new_datasets = [name]
        if not new_runs and (RESULTS / "runs" / name / "run.json").exists():
            new_runs = [name]
        if not new_datasets and not new_runs:
            known = [run.name for run in project.runs.values()]
            known += [dataset.name for dataset in project.datasets.values()]
            raise ConfigError(
                f'the config names no run or dataset "{name}"; {_suggest(name, known)}'
            )
        datasets |= dict.fromkeys(new_datasets)
        runs |= dict.fromkeys(new_runs)
    return list(datasets), list(runs)


def _verdicts(
    project: "Project", datasets: Sequence[str], runs: Sequence[str], console: Console
) -> Iterator["Verdict"]:
    """Verify one after another; a terminal shows a bar below the lines that are printed meanwhile."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from shardline import upkeep

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (datasets and console.is_terminal)
    ) as bar:
        for dataset in datasets:
            task = bar.add_task(dataset, total=upkeep.sealed_bytes(dataset))
            yield upkeep.verify_dataset(project, dataset, partial(bar.advance, task))
            bar.remove_task(task)
        for run in runs:
            yield upkeep.verify_run(run)


def _show_verdict(verdict: "Verdict", width: int, console: Console) -> None:
    mark, style = ("BAD", "bold red") if verdict.problems else ("ok ", "green")
    name, summary = f"{verdict.id:{width}}", Text(f"  {verdict.summary}", style="dim")
    line = Text.assemble((mark, style), f"  {verdict.kind:7}  ", (name, "bold"), summary)
    console.print(line, soft_wrap=True)
    for problem in verdict.problems:
        console.print(Text(f"     {problem}"), soft_wrap=True)
