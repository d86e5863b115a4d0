"""The commands that begin a project: `init`, `digest`."""

from pathlib import Path
from typing import Annotated

import typer

from shardline.cli.app import app
from shardline.cli.display.terminal import say
from shardline.cli.scaffold import init_project


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")],
) -> None:
    """Start a project: config, profiles, a Snakefile, a model and a data source.

    Nothing is overwritten: if one of these files exists already, no file is written.
    """
    for name in init_project(folder):
        say(f"  {folder / name}")
    say(f"Begin with: cd {folder} && snakemake --profile profiles/local")


@app.command("digest")
def digest(
    places: Annotated[
        list[str], typer.Argument(metavar="URL|PATH...", help="Files, patterns, Delta tables.")
    ],
) -> None:
    """Print what the config needs of remote files (url, sha256, bytes) and Delta tables (their id).

    Every byte of the files is read. URLs may hold patterns, as in `s3://bucket/rows/*.parquet`.
    """
    import yaml

    from shardline.data.sources.remote import describe

    typer.echo(
        yaml.safe_dump(list(describe(places)), sort_keys=False, allow_unicode=True), nl=False
    )
