"""The commands for datasets: `data show`, `data init`."""

from pathlib import Path
from typing import Annotated

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.data_views import show_datasets
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.config.load import load_project
from shardline.config.user_files import read_config
from shardline.core.errors import DataError
from shardline.records.understood import block

data = typer.Typer(
    help="Look at datasets, and write their entries in the config.", no_args_is_help=True
)
app.add_typer(data, name="data")


@data.command("show")
def show(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATASET", help="Names or ids; default: all datasets of the config."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what Shardline understands of datasets, built or not.

    Lists rows by split, columns, features and columns left out, classes with
    counts, ranges, the first row, and files that are not read. A dataset that is
    not built is read from its first rows.
    """
    from shardline.results.data_show import describe_datasets

    known = read_config(context.obj)["datasets"]
    project = load_project(config_file=context.obj, datasets=[*known])
    with waiting_for("reading"):
        found = describe_datasets(project, names or [])
    if as_json:
        say_json(found)
    else:
        show_datasets(found)
    if any(one.problem for one in found):
        raise typer.Exit(DataError.exit_code)


@data.command("init")
def init(
    context: typer.Context,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Files, patterns, a folder, or a Python path such as mypkg.data:Flowers.",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the dataset.")] = "",
    write: Annotated[
        bool, typer.Option("--write", metavar="", help="Insert the entry into the config.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entry of the config for data: type, label, classes, features, with comments.

    Looks at the first rows and guesses. The comments state what is a guess, and
    what to write instead.
    """
    from shardline.results.data_init import add_entry, guess_entry

    with waiting_for("looking at the data"):
        entry = guess_entry(places, Path.cwd(), name)
    if write:
        add_entry(Path.cwd() / context.obj, entry)
    if as_json:
        kept = ("name", "settings", "comments", "notes")
        say_json({key: getattr(entry, key) for key in kept})
        return
    typer.echo(entry.text, nl=False)
    # not on standard output, which may be appended to a config
    say(block(entry.name, entry.read), style="dim", is_error=True)
    if write:
        say(f"added to {context.obj}; `shardline data show {entry.name}` shows what is read")
