"""The `shardline` command as a whole: its options and exit codes."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shardline import __version__
from shardline.cli.display.terminal import say
from shardline.cli.profile import configured_store, describe_other_stores, profile_store
from shardline.config.layout import ResultsLayout, check_layout
from shardline.core.errors import ShardlineError
from shardline.core.masked_output import MaskedStream

EXIT_CODES = {
    0: "all is well",
    1: "something else failed, or a deletion was declined",
    2: "the config, the run table or the command line is wrong",
    3: "data or results are missing, damaged, not as recorded or cannot be written",
    4: "the ranks of a training cannot be started",
}
EPILOG = "\n".join(
    ["[bold]Exit codes[/bold]", *(f"  {code}  {text}" for code, text in EXIT_CODES.items())]
)


class _Group(TyperGroup):
    """Ends a user's mistake with its one sentence and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ShardlineError as error:
            say(str(error), is_error=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="shardline",
    cls=_Group,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a bug of ours keeps its plain traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, for programs.")]
OnProfile = Annotated[
    str, typer.Option("--profile", metavar="PROFILE", help="Snakemake's profile to run on.")
]
SetResources = Annotated[
    list[str] | None, typer.Option(metavar="RULE:NAME=VALUE", help="Passed on to Snakemake.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask first.")]


def main() -> None:
    """Run the `shardline` command."""
    # for good: Python prints the traceback of a bug when all is left
    sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr)
    app(prog_name="shardline")


def resource_arguments(set_resources: list[str] | None) -> list[str]:
    """Return `SetResources` as Snakemake's arguments."""
    return ["--set-resources", *set_resources] if set_resources else []


def ask(question: str, command: str, verb: str, *, quiet: bool) -> None:
    """Ask a person, and end the command if the answer is no.

    Raises:
        ShardlineError: nobody can answer, or what is printed is for a program.
    """
    if quiet or not sys.stdin.isatty():
        raise ShardlineError(
            f"{command} asks before it {verb} and here is nobody to ask; add --yes"
        )
    typer.confirm(question, abort=True)


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
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="PROFILE", help="Snakemake's profile, if it names the store."
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Inspect the runs of a Shardline project; call it in the project's folder.

    `snakemake` makes the runs. Of the commands only `rerun` trains one, and only
    `gc --delete`, `rm --delete` and `verify --repair` delete files.
    """
    layout = ResultsLayout(root=Path.cwd())
    check_layout(layout)
    context.obj = config
    if profile:
        context.with_resource(profile_store(profile))
        return
    for sentence in describe_other_stores(configured_store(layout, config)):
        say(sentence, is_error=True)
