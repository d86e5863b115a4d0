"""The Python that ranks start with: of their common environment, or of a training script."""

import sys
from dataclasses import replace
from pathlib import Path

from shardline.config.documents import script_index
from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.scripts import ScriptEnvironment, split_script
from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.environments.container import image_python, mounted, python_of_image
from shardline.identity.interpreter import Interpreter, ask
from shardline.identity.reach import needed_packages
from shardline_io.own_run import setting_for_shardline


def interpreter(environment: Path | None) -> tuple[str, ...]:
    """Return the command that starts Python in an environment; its arguments follow it.

    Args:
        environment: record that the environment's rule wrote; None for this process's environment.

    Raises:
        DataError: the record cannot be read, or the environment no longer exists.
    """
    if environment is None:
        return (sys.executable,)
    remedy = f"delete {environment} and run the pipeline again to create the environment"
    made = read_json(environment, remedy=remedy)
    python = Path(made["prefix"]) / "bin" / "python"
    if not python.exists():
        raise DataError(f"{environment} names {python}, which does not exist; {remedy}")
    return (str(python),)


def python_of_ranks(
    project: Project, *, gpus: bool, environment: str | None = None
) -> tuple[str, ...]:
    """Return the command that starts Python in the environment of `runtime.environment`.

    Args:
        gpus: whether the started program computes on GPUs.
        environment: record of the environment; default: the project's own record.

    Raises:
        DataError: the environment does not exist yet, or no longer.
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


def problem_of(project: Project, run: RunPlan, found: Interpreter) -> str:
    """Return what is missing in the environment of a run's script, as text; empty if nothing is.

    Args:
        found: the environment's interpreter.

    Raises:
        ShardlineError: a module of the script cannot be read.
    """
    assert run.environment is not None
    where = run.environment.where
    needed = needed_packages(script_index(project.code, project.workdir, run.model_class))
    if missing := found.lacks([*needed, "numpy"]):
        script = split_script(run.model_class)[0]
        needs = "shardline_io needs" if missing == ["numpy"] else f"{script} imports"
        return (
            f"{needs} {', '.join(missing)}, but {where} lacks {'it' if len(missing) == 1 else 'them'}; "
            "add the package and write the lock again, or install the package there"
        )
    setting = setting_for_shardline(as_plain(run.settings.data), len(run.parts))
    if setting and found.lacks(["shardline"]):
        return (
            f"the run has {setting}, which the package shardline applies, but {where} lacks it; add shardline to "
            "the lock, or remove the setting and do this in the script"
        )
    return ""


def interpreter_of(environment: ScriptEnvironment, file: Path | None) -> Interpreter | None:
    """Return the interpreter of an environment; None for an image, and before the environment is built.

    Args:
        file: path of the environment's record.

    Raises:
        DataError: the environment no longer exists.
    """
    if environment.interpreter:
        return environment.interpreter
    if environment.image or file is None or not file.exists():
        return None
    return ask(Path(interpreter(file)[0]), environment.where)


def python_of_script(
    project: Project, run: RunPlan, file: str | None, *, modules: Path
) -> tuple[str, ...]:
    """Return the command that starts a script's Python; empty if the rank finds it out itself.

    Args:
        file: record of an environment that was built.
        modules: folder of modules that every script can import, see `training.script.prepare`.

    Raises:
        DataError: the environment no longer exists.
    """
    environment = run.environment
    if environment is None or environment.is_of_nodes:
        return ()
    if environment.image:
        guard = modules / "shardline_io" / "guard.py"
        gpus = run.settings.accelerator == "gpu"
        return python_of_image(environment.image, guard, project=project, gpus=gpus)
    if environment.interpreter:
        return environment.interpreter.words
    return interpreter(Path(file)) if file else ()


def built_on_nodes(
    environment: ScriptEnvironment | None, layout: ResultsLayout
) -> ScriptEnvironment | None:
    """Return an environment that each node builds, with a path that is valid there; else None."""
    if environment is None or not environment.is_of_nodes or environment.file is None:
        return None
    # the project's folder has another path on each node
    return replace(environment, file=Path(layout.name_of(environment.file)))
