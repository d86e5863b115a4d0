"""The commands for starting a project: `init`, `digest`."""

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

# Appended to the shipped config, whose last table is `datasets`.
_OWN_CONFIG = """\
  # Noisy points on two rings, by a class of your own: mypkg/sources.py.
  rings:
    source: {type: "mypkg.sources:Rings", options: {noise: 0.1}, files: [data/rings.csv]}
    shards: 4

lock: requirements.lock # the packages that count in identities, and that are to be installed
"""


@app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the project; created if missing.")
    ],
) -> None:
    """Create a project: config, profiles, Snakefile, example model and data source.

    Nothing is overwritten: if one of these files exists, the command writes no file.
    """
    for name in init_project(folder):
        say(f"  {folder / name}")
    say(f"Begin with: cd {folder} && snakemake --profile profiles/local")


@app.command("digest")
def digest(
    places: Annotated[
        list[str], typer.Argument(metavar="URL|PATH...", help="Files, patterns or Delta tables.")
    ],
) -> None:
    """Print the config entries of remote files (url, sha256, bytes) and Delta tables (table_id).

    Reads every byte of the files. A URL may contain a pattern, such as
    `s3://bucket/rows/*.parquet`.
    """
    import yaml

    from shardline.data.sources.remote_files import describe

    typer.echo(
        yaml.safe_dump(list(describe(places)), sort_keys=False, allow_unicode=True), nl=False
    )


def init_project(folder: Path) -> list[str]:
    """Write the files of a new project.

    Args:
        folder: Folder of the project; created if missing.

    Returns:
        Paths of the files, relative to the folder.

    Raises:
        ConfigError: Files exist already. The message names all of them; nothing is written.
        DataError: A file cannot be written.
    """
    files = dict(sorted(_files(folder.resolve().name).items()))
    if taken := sorted(set(_in_the_way(folder, files))):
        raise ConfigError(
            f"init {folder}: these files exist already: {', '.join(taken)}; nothing was written; "
            "name another folder, or move the files away"
        )
    for name, content in files.items():
        write_bytes(folder / name, content)
    return list(files)


def _files(project: str) -> dict[str, bytes]:
    shipped = workflow_folder()
    files = _read(shipped, "config/*", "profiles/*/profile.yaml", "requirements.lock")
    # the project's run table replaces the shipped one
    files |= _read(shipped / "config" / "project", "**/*")
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
