"""The `shardline` command: its options, exit codes and commands.

What a command shows is found by `states`, `why`, `garbage` and `verify`, and
put on a terminal by `display`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shardline import __version__, display
from shardline.config import Project, load_project
from shardline.config.document import read_config
from shardline.errors import DataError, ShardlineError
from shardline.garbage import Garbage, check_unlocked, delete, find_garbage, last_results
from shardline.init import init_project
from shardline.rehearsals import one_of_each_geometry, rehearse_runs
from shardline.selection import datasets_to_repair, find_run, find_targets
from shardline.states import describe_runs
from shardline.verify import Verdict, repair_dataset, verify_dataset, verify_run
from shardline.why import explain

EXIT_CODES = {
    0: "all is well",
    1: "something else failed, or a deletion was declined",
    2: "the config, the run table or the command line is wrong",
    3: "data or results are missing, damaged or cannot be written",
    4: "the ranks of a training cannot be started",
}
_EPILOG = "\n".join(
    ["[bold]Exit codes[/bold]", *(f"  {code}  {text}" for code, text in EXIT_CODES.items())]
)


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

    Runs are made by `snakemake`. Nothing here trains, and only `gc --delete` and
    `verify --repair` delete.
    """
    context.obj = config


@app.command("init", epilog=_EPILOG)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")],
) -> None:
    """Start a project: config, profiles, a Snakefile, a model and a data source to begin with.

    Nothing is overwritten: where one of its files is there already, nothing is written.
    """
    for name in init_project(folder):
        display.say(f"  {folder / name}")
    display.say(f"Begin with: cd {folder} && snakemake --profile profiles/local")


@app.command("ls", epilog=_EPILOG)
def list_runs(context: typer.Context, as_json: _AsJson = False) -> None:
    """List the runs of the config: state, headline metric, identity.

    [green]done[/green]         trained and evaluated
    [cyan]trained[/cyan]      trained; the evaluation is missing or stale
    [yellow]in progress[/yellow]  training has begun and continues from its checkpoint
    [magenta]stale[/magenta]        sealed under an earlier identity only: `shardline why RUN`
    [blue]new[/blue]          nothing of this name is sealed
    """
    project = load_project(config_file=context.obj)
    records = describe_runs(project)
    if as_json:
        display.say_json(records)
        return
    display.show_runs(records)
    if project.report.exists():
        display.say(f"report: {project.report}")


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
    project = load_project(config_file=context.obj)
    explanation = explain(project, find_run(project, run))
    if as_json:
        display.say_json({**vars(explanation), "run": explanation.run.id})
    else:
        display.show_explanation(explanation, project.store)


@app.command("gc", epilog=_EPILOG)
def collect_garbage(
    context: typer.Context,
    wants_deletion: Annotated[
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
    project = load_project(config_file=context.obj)
    garbage = find_garbage(project, read_config(context.obj)["datasets"])
    if not as_json:
        remedy = "" if wants_deletion else "; `shardline gc --delete` deletes them"
        display.show_garbage(garbage, last_results(project, garbage), remedy)
    if wants_deletion and garbage:
        if not yes:
            _ask(quiet=as_json)
        check_unlocked(project.workdir)
        _delete(garbage, quiet=as_json)
    if as_json:
        num_bytes = sum(item.bytes for item in garbage)
        display.say_json({"deleted": wants_deletion, "bytes": num_bytes, "items": garbage})


def _ask(*, quiet: bool) -> None:
    if quiet or not sys.stdin.isatty():
        raise ShardlineError(
            "gc --delete asks before it deletes and here is nobody to ask; add --yes"
        )
    typer.confirm("Delete them?", abort=True)


def _delete(garbage: Sequence[Garbage], *, quiet: bool) -> None:
    freed = 0
    try:
        for item in delete(garbage):
            freed += item.bytes
    finally:
        if not quiet:
            display.say_freed(freed)


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
    repair: Annotated[
        bool,
        typer.Option("--repair", metavar="", help="Drop a dataset's bad shards, to be rebuilt."),
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Hold shards and sealed files against manifests, identities and provenance.

    Every byte of the shards is read. Exit code 3 if anything is wrong.
    With --repair, what is bad of the named datasets is deleted, and the next
    `snakemake` rebuilds just the parts that held it.
    """
    project = load_project(config_file=context.obj)
    targets = (datasets_to_repair if repair else find_targets)(project, names or [])
    verdicts = []
    for kind, item in targets:
        with display.waiting_for(f"reading {item}"):
            verdict = verify_dataset(project, item) if kind == "dataset" else verify_run(item)
        verdicts.append(verdict)
        if not as_json:
            display.show_verdict(verdict, width=max(len(item) for _, item in targets))
        if repair:
            _repair(project, verdict, quiet=as_json)
    bad = sum(bool(verdict.problems) for verdict in verdicts)
    if as_json:
        display.say_json(verdicts)
    elif not verdicts:
        display.say("Nothing to verify: nothing that the config names exists yet.")
    elif (len(verdicts) > 1 or bad) and not repair:
        display.say(f"\n{len(verdicts)} verified, {bad or 'none'} with problems")
    if bad and not repair:
        raise typer.Exit(DataError.exit_code)


def _repair(project: Project, verdict: Verdict, *, quiet: bool) -> None:
    parts = repair_dataset(project, verdict) if verdict.problems else []
    if quiet:
        return
    if not verdict.problems:
        display.say(f"nothing to repair: {verdict.id} is undamaged, and nothing was changed")
        return
    display.show_repair(verdict, parts, project.datasets[verdict.id].manifest)


@app.command("rehearse", epilog=_EPILOG)
def rehearse(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Names or ids; left out, one run of each geometry."),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="PROFILE", help="Snakemake's profile to start on.")
    ] = "profiles/local",
    set_resources: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE:NAME=VALUE", help="Passed on to Snakemake."),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Start a run's ranks only to meet: who comes, on what device, how fast each path is.

    A cheap job on the profile's real machines, by its launcher. Nothing is trained.
    Every training begins with the same rehearsal.
    """
    project = load_project(config_file=context.obj)
    runs = [find_run(project, name) for name in names or []] or one_of_each_geometry(project)
    arguments = ["--set-resources", *set_resources] if set_resources else []
    found = rehearse_runs(runs, config=context.obj, profile=profile, arguments=arguments)
    if as_json:
        display.say_json({run.id: rehearsal.to_json() for run, rehearsal in found})
        return
    for run, rehearsal in found:
        display.say(f"\n{run.id}\n{rehearsal.table()}")


@app.command("digest", epilog=_EPILOG)
def digest(
    places: Annotated[
        list[str], typer.Argument(metavar="URL|PATH...", help="Files, patterns, Delta tables.")
    ],
) -> None:
    """Print what the config needs of remote files (url, sha256, bytes) and Delta tables (their id).

    Every byte of the files is read. URLs may hold patterns, as in `s3://bucket/rows/*.parquet`.
    """
    import yaml

    from shardline.sources.remote import describe

    typer.echo(
        yaml.safe_dump(list(describe(places)), sort_keys=False, allow_unicode=True), nl=False
    )
