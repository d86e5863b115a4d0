"""The interpreter that a run's ranks start with."""

import sys
from pathlib import Path

from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.environments.container import image_python, mounted


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


def python_of_ranks(
    project: Project, *, gpus: bool, environment: str | None = None
) -> tuple[str, ...]:
    """Return the words that start Python in the environment that `runtime.environment` names.

    Args:
        gpus: whether what is started computes on GPUs.
        environment: the file that names the environment; the project's own file if left out.

    Raises:
        DataError: it is not made yet, or not there any more.
    """
    named = environment or project.environment
    if named and project.runtime.environment == "image":
        return image_python(
            Path(named),
            settings=project.image,
            runtime=project.runtime,
            lock=project.lock_file,
            folders=mounted(project.workdir, project.store),
            gpus=gpus,
        )
    return interpreter(Path(named) if named else None)
