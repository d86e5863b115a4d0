"""The interpreter that a run's ranks start with."""

import sys
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.files import read_json


def interpreter(environment: Path | None) -> tuple[str, ...]:
    """Return the words that start Python in an environment; its arguments follow them.

    Args:
        environment: what the environment's rule has written of it; None is this process's own.

    Raises:
        DataError: the file cannot be read, or the environment is not there any more.
    """
    if environment is None:
        return (sys.executable,)
    remedy = f"delete {environment} and run the pipeline again to make the environment"
    made = read_json(environment, remedy=remedy)
    python = Path(made["prefix"]) / "bin" / "python"
    if not python.exists():
        raise DataError(f"{environment} names {python}, which is not there; {remedy}")
    return (str(python),)
