"""The environments of training scripts, made from their locks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardline.config.project import Project
from shardline.config.run import Run
from shardline.config.script_environment import ScriptEnvironment
from shardline.core.errors import ConfigError
from shardline.environments.of_script import problem_of
from shardline.environments.prefix import make_prefix
from shardline.environments.venv import make_venv
from shardline.identity.conda_pins import read_pins
from shardline.identity.interpreter import ask


def make_environment(project: Project, environment: ScriptEnvironment) -> dict[str, Any]:
    """Make what scripts run in, unless it is there; see `venv.make_venv`.

    Raises:
        ConfigError: it cannot be made, or lacks a package that one of its scripts imports.
    """
    folder = project.layout.prefixes.resolve()
    if environment.kind == "conda":
        assert environment.file is not None
        made = make_prefix(folder, "conda", read_pins(environment.file), has_shardline=False)
    else:
        made = make_venv(folder, environment)
    found = ask(Path(made["prefix"]) / "bin" / "python", environment.where)
    for run in _scripts_of(project, environment):
        if problem := problem_of(project, run, found):
            raise ConfigError(f"{run.name}: {problem}")
    return made


def _scripts_of(project: Project, environment: ScriptEnvironment) -> Iterable[Run]:
    runs = (run for run in project.runs.values() if run.environment)
    return (
        run for run in runs if run.environment and run.environment.address == environment.address
    )
