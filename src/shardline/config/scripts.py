"""A training program of the user's own as a run's model: `script: path/to/train.py --lr 0.1`."""

import re
import shlex
from pathlib import Path

from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

_PREFIX = "script:"
ARGUMENT = "argument:"  # a Python file that a script is given: `argument: train.py run.py`
_CLASS = re.compile(r"script:[^\W\d]\w*")  # `script:Net` is a class of the user's module `script`


def is_script(model: str) -> bool:
    """Return whether a cell of the column `model`, or a resolved model, is a script."""
    return model.startswith(_PREFIX) and not _CLASS.fullmatch(model)


def is_file(path: str) -> bool:
    """Return whether a resolved program is a Python file: a script, or one that a script is given."""
    return is_script(path) or path.startswith(ARGUMENT)


def split_script(model: str) -> list[str]:
    """Return a script's path and its arguments, split as a shell does.

    Args:
        model: a script, or what `ARGUMENT` begins.

    Raises:
        ValueError: a quotation mark is not closed.
    """
    return shlex.split(model.partition(":")[2])


def resolve_script(model: str, workdir: Path, where: str) -> str:
    """Return a script in its one spelling: path from the project's folder, arguments quoted alike.

    Args:
        model: the cell, for which `is_script` holds.
        workdir: the project's folder, without links.
        where: file, row and column, as messages begin.

    Raises:
        ConfigError: there is no path, no such file in the project's folder, or
            it is no Python file.
    """
    shown = f"{where}={model}"
    try:
        words = split_script(model)
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}; close its quotes") from None
    if not words:
        raise ConfigError(
            f"{shown} names no file; write script: path/to/train.py and its arguments"
        )
    path = (workdir / words[0]).resolve()  # as Python does before it looks for imports beside it
    if not path.is_relative_to(workdir):
        raise ConfigError(
            f"{shown}: {words[0]} lies outside the project folder {workdir}, where its changes "
            "would not be noticed; move it there"
        )
    if not path.is_file():
        beside = [str(f.relative_to(workdir)) for f in sorted(path.parent.glob("*.py"))]
        hint = suggest(words[0], beside) if beside else "check the path"
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{shown}: {words[0]} {what} in {workdir}; {hint}")
    if path.suffix != ".py":
        raise ConfigError(
            f"{shown}: {words[0]} is not a Python file (.py); start it from one that is"
        )
    return f"{_PREFIX} {shlex.join([path.relative_to(workdir).as_posix(), *words[1:]])}"
