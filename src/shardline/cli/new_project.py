"""The commands for starting a project: `init`, `digest`."""

import os
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from shardline.cli.app import app
from shardline.cli.display.terminal import say, waiting_for
from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes
from shardline.core.package import workflow_folder
from shardline.results.check.found import errors_of

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
    model: Annotated[
        str, typer.Option(metavar="PATH", help="Import path of your model, pkg.mod:Class.")
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Import path of your torch dataset or data module, or a data file."
        ),
    ] = "",
) -> None:
    """Create a project: config, profiles, Snakefile, example model and data source.

    With --model and --data, the folder contains your code already. The config gets
    the arguments of your classes, and is checked; no example is written.
    Nothing is overwritten: if one of these files exists, the command writes no file.
    """
    if not (model or data):
        for name in init_project(folder):
            say(f"  {folder / name}")
        say(f"Begin with: cd {folder} && snakemake --profile profiles/local")
        return
    if not (model and data):
        given, lacking = ("--model", "--data") if model else ("--data", "--model")
        raise ConfigError(
            f"init {given} is given without {lacking}, expected both for a folder with code; add {lacking}"
        )
    from shardline.cli.check import show_check

    with waiting_for("looking at the classes"):
        names, left = init_beside(folder, model, data)
    for name in names:
        say(f"  {folder / name}")
    with chdir(folder):
        errors = errors_of(show_check(Path("config/config.yaml"), None, []))
    if left or errors:
        say("\nleft to decide, in config/config.yaml:")
        for sentence in [*left, *(["the errors of the check above"] if errors else [])]:
            say(f"  - {sentence}")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    say(f"Begin with: {enter}snakemake --profile profiles/local")


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
    _refuse_taken(folder, files, "name another folder, or move the files away")
    _write(folder, files)
    return list(files)


def init_beside(folder: Path, model: str, data: str) -> tuple[list[str], list[str]]:
    """Write config, run table, profiles and Snakefile beside the code of a project.

    Args:
        folder: Folder with the code.
        model: Import path of the model.
        data: Import path of the data, or files.

    Returns:
        Paths of the files, relative to the folder, and sentences on what is left to decide.

    Raises:
        ConfigError: Files exist already, or a class does not import; nothing is written.
        DataError: A file cannot be written.
    """
    from shardline.results.project_init import project_text

    if not folder.is_dir():
        raise ConfigError(
            f"init {folder}: no such folder, expected one with the code of {model}; name it"
        )
    shipped = workflow_folder()
    files = _read(shipped, "config/README.md", "profiles/*/profile.yaml")
    own = _read(shipped / "config" / "project", "Snakefile", ".gitignore")
    files["Snakefile"] = own["Snakefile"]
    # replaced by the texts, once it is known that nothing is in their way
    files |= {"config/config.yaml": b"", "config/runs.tsv": b""}
    _refuse_taken(folder, files, "move these files away")
    text = project_text(model, data, folder.resolve())
    files["config/config.yaml"] = text.config.encode()
    files["config/runs.tsv"] = text.table.encode()
    lock = _lock(shipped)
    for name, content in {".gitignore": own[".gitignore"], **lock}.items():
        if not os.path.lexists(folder / name):
            files[name] = content
    left = [*text.left]
    if ".gitignore" not in files:
        left.append("add results/, store/, logs/, benchmarks/ and .snakemake/ to .gitignore")
    files = dict(sorted(files.items()))
    _write(folder, files)
    return list(files), left


def _refuse_taken(folder: Path, files: Mapping[str, bytes], remedy: str) -> None:
    if taken := sorted(set(_in_the_way(folder, files))):
        raise ConfigError(
            f"init {folder}: these files exist already: {', '.join(taken)}; nothing was written; {remedy}"
        )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_bytes(folder / name, content)


def _files(project: str) -> dict[str, bytes]:
    shipped = workflow_folder()
    files = _read(shipped, "config/*", "profiles/*/profile.yaml")
    files |= _lock(shipped)
    # the project's run table replaces the shipped one
    files |= _read(shipped / "config" / "project", "**/*")
    files["config/config.yaml"] += _OWN_CONFIG.encode()
    files["README.md"] = files["README.md"].replace(b"{project}", project.encode())
    return files


def _lock(shipped: Path) -> dict[str, bytes]:
    from shardline.results.installed_lock import lock_of_project

    return {"requirements.lock": lock_of_project(shipped / "requirements.lock")}


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
