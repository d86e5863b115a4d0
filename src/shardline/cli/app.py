"""The `shardline` application: shared options, exit codes and the handling of errors."""

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
from shardline.core.extras import naming_extras
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
    """Command group that prints a `ShardlineError` as one sentence and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with naming_extras():
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
    pretty_exceptions_enable=False,  # a bug of Shardline keeps its plain traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
OnProfile = Annotated[
    str, typer.Option("--profile", metavar="PROFILE", help="Snakemake profile to run with.")
]
SetResources = Annotated[
    list[str] | None, typer.Option(metavar="RULE:NAME=VALUE", help="Passed to Snakemake.")
]
StoreOfProfile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="PROFILE", help="Snakemake profile whose config and store to use."
    ),
]
_WITH_STORE_OF_PROFILE = ("check", "why")  # they read this option themselves
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask for confirmation.")]


def main() -> None:
    """Run the `shardline` command."""
    # never restored: Python prints the traceback of a bug after this function ends
    sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr)
    app(prog_name="shardline")


def resource_arguments(set_resources: list[str] | None) -> list[str]:
    """Return the values of `--set-resources` as arguments for Snakemake."""
    return ["--set-resources", *set_resources] if set_resources else []


def ask(question: str, command: str, verb: str, *, quiet: bool) -> None:
    """Ask for confirmation, and abort the command if the answer is no.

    Raises:
        ShardlineError: standard input is not a terminal, or the command prints JSON.
    """
    if quiet or not sys.stdin.isatty():
        raise ShardlineError(
            f"{command} asks before it {verb}, but standard input is not a terminal; add --yes"
        )
    typer.confirm(question, abort=True)


def use_profile(context: typer.Context, profile: str | None) -> str | None:
    """Use the store of a profile until the command ends, or name profiles with other stores.

    Args:
        profile: Value of `--profile` behind the command; None: the value before the command.

    Returns:
        The profile in use.
    """
    profile = profile or context.find_root().params.get("profile")
    if profile:
        context.with_resource(profile_store(profile))
        return profile
    for sentence in describe_other_stores(
        configured_store(ResultsLayout(root=Path.cwd()), context.obj)
    ):
        say(sentence, is_error=True)
    return None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="Config of the project.")
    ] = Path("config/config.yaml"),
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="Snakemake profile that sets runtime.store, if any.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Check, inspect and share the runs of a Shardline project.

    Call it in the project's folder. `snakemake` trains and evaluates the runs.
    Of these commands, only `gc --delete`, `rm --delete` and `verify --repair`
    delete results.
    """
    check_layout(ResultsLayout(root=Path.cwd()))
    context.obj = config
    if context.invoked_subcommand not in _WITH_STORE_OF_PROFILE:
        use_profile(context, profile)
