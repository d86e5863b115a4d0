"""The environments of training scripts: created from their locks, or pulled."""

import logging
from collections.abc import Iterable
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.scripts import ScriptEnvironment
from shardline.core.errors import ConfigError
from shardline.environments.container import RUNNERS, python_of_image
from shardline.environments.image import find_tool
from shardline.environments.prefix import make_prefix
from shardline.environments.python import problem_of
from shardline.environments.venv import make_venv
from shardline.identity.interpreter import Interpreter, ask, ask_words
from shardline.identity.package_lock import read_pins
from shardline.records.environments import CondaEnvironment, ImageEnvironment, VirtualEnvironment

Made = CondaEnvironment | VirtualEnvironment | ImageEnvironment
_PULL_LIMIT_S = 3600.0  # for an image of many GiB over a slow network


def make_environment(project: Project, environment: ScriptEnvironment) -> Made:
    """Create or pull a scripts' environment, unless it exists, and check that it has their imports.

    Raises:
        ConfigError: it cannot be created, or lacks a package that one of the scripts imports.
    """
    if environment.image:
        image = _ask_image(project, environment)
        if image:
            _check_scripts(project, environment, image)
        python = image.python if image else None
        return ImageEnvironment(image=environment.image, python=python)
    folder = project.layout.prefixes.resolve()
    made: CondaEnvironment | VirtualEnvironment
    if environment.kind == "conda":
        assert environment.file is not None
        made = make_prefix(folder, "conda", read_pins(environment.file), has_shardline=False)
    else:
        made = make_venv(folder, environment)
    logging.info("%s: %d packages", made.prefix, len(made.packages))
    found = ask(Path(made.prefix) / "bin" / "python", environment.where)
    _check_scripts(project, environment, found)
    return made


def _ask_image(project: Project, environment: ScriptEnvironment) -> Interpreter | None:
    """Start the Python of an image, which pulls the image; None if only other machines run images."""
    try:
        find_tool("image.run_with", project.image.run_with, RUNNERS)
    except ConfigError as error:
        if project.runtime.launcher != "srun":
            raise
        logging.warning("%s is not checked before its ranks start: %s", environment.where, error)
        return None
    project.store.mkdir(parents=True, exist_ok=True)  # the container mounts it
    words = python_of_image(environment.image, None, project=project, gpus=False)
    remedy = (
        "check that the image's name and digest are in the registry, log in to it with the tool itself, or add "
        "the options that this machine needs to image.run_args"
    )
    found = ask_words(words, environment.where, remedy=remedy, limit_s=_PULL_LIMIT_S)
    logging.info("%s: Python %s", environment.image, found.python)
    return found


def _check_scripts(project: Project, environment: ScriptEnvironment, found: Interpreter) -> None:
    for run in _scripts_of(project, environment):
        if problem := problem_of(project, run, found):
            raise ConfigError(f"{run.name}: {problem}")


def _scripts_of(project: Project, environment: ScriptEnvironment) -> Iterable[RunPlan]:
    runs = (run for run in project.runs.values() if run.environment)
    return (
        run for run in runs if run.environment and run.environment.address == environment.address
    )
