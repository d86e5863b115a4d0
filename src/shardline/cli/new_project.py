"""The commands that begin a project: `init`, `digest`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from shardline.cli.app import app
from shardline.cli.display.terminal import say
from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes
from shardline.core.package import workflow_folder

# Ends the shipped config, whose last table is `datasets`.
_OWN_CONFIG = """\
  # Noisy points on two rings, by a class of your own: mypkg/sources.py.
  rings:
    source: {type: "mypkg.sources:Rings", options: {noise: 0.1}, files: [data/rings.csv]}
    shards: 4

lock: requirements.lock # the packages that count in identities, and that are to be installed
"""


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

    from shardline.data.sources.remote_files import describe

    typer.echo(
        yaml.safe_dump(list(describe(places)), sort_keys=False, allow_unicode=True), nl=False
    )


def init_project(folder: Path) -> list[str]:
    """Write the files of a new project.

    Args:
        folder: where to; made if it is not there.

    Returns:
        The names of the files, from the folder.

    Raises:
        ConfigError: a file is in the way; all such are named, and nothing is written.
        DataError: a file cannot be written.
    """
    files = dict(sorted(_files(folder.resolve().name).items()))
    if taken := sorted(set(_in_the_way(folder, files))):
        raise ConfigError(
            f"init {folder}: already there: {', '.join(taken)}; nothing was written; "
            "name a folder without these, or move them away"
        )
    for name, content in files.items():
        write_bytes(folder / name, content)
    return list(files)


def _files(project: str) -> dict[str, bytes]:
    shipped = workflow_folder()
    files = _read(shipped, "config/*", "profiles/*/profile.yaml", "requirements.lock")
    files |= _read(
        shipped / "config" / "project", "**/*"
    )  # its run table goes before the shipped one
    files["config/config.yaml"] += _OWN_CONFIG.encode()
    files["README.md"] = files["README.md"].replace(b"{project}", project.encode())
    return files


def _read(folder: Path, *patterns: str) -> dict[str, bytes]:
    found = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if "__pycache__" not in path.parts
    }


def _in_the_way(folder: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    for name in files:
        if os.path.lexists(folder / name):
            yield name
        for parent in Path(name).parents:  # the last is the folder itself
            path = folder / parent
            if os.path.lexists(path) and not path.is_dir():
                yield str(folder if parent == Path() else parent)
