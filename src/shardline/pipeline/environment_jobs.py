"""The jobs that create environments: the stages' conda environments and the container image."""

import logging
from pathlib import Path

from shardline.config.project import Project
from shardline.core.errors import ConfigError
from shardline.core.files import write_json
from shardline.environments.specs import (
    STAGES,
    checked_pins,
    env_file,
    existing_pin_file,
    pin_file,
    read_specs,
    specs_of,
    write_pins,
    write_specs,
)
from shardline.records.base import encode


def lock_envs(project: Project) -> None:
    """Write every stage's conda environment file from the lock, and solve the files into pin files.

    A pin file that no longer fits its environment file is removed before the solver
    runs, because Snakemake would use it unchecked. The other pin files stay until every
    environment is solved.
    """
    from shardline.environments.solve import solve

    for env in STAGES:
        write_specs(project, env)
        try:
            checked_pins(pin_file(project, env), specs_of(project, env))
        except ConfigError as error:
            if pin_file(project, env).exists():
                pin_file(project, env).unlink()
                logging.info("removed: %s", error)
    solved = {
        env: solve(
            specs_of(project, env),
            channels=project.conda.channels,
            virtual_packages=project.conda.virtual_packages,
            what=str(env_file(project, env)),
        )
        for env in STAGES
    }
    for env, found in solved.items():
        write_pins(project, env, found)
        logging.info("%s: %d packages", pin_file(project, env), len(found))


def create_env(project: Project, env: str, environment: str) -> None:
    """Create a stage's conda environment from its pin file, and write its record."""
    from shardline.environments.prefix import make_prefix

    specs = read_specs(project, env)
    pins = checked_pins(existing_pin_file(project, env), specs)
    made = make_prefix(project.layout.prefixes.resolve(), env, pins)
    logging.info("%s: %d packages", made.prefix, len(made.packages))
    write_json(Path(environment), encode(made))


def build_environment(project: Project, address: str, environment: str) -> None:
    """Build or pull an environment of training scripts, and write its record."""
    from shardline.environments.script_environments import make_environment

    found = make_environment(project, project.built_environments[address])
    write_json(Path(environment), encode(found))


def build_image(project: Project, log: Path, document: str) -> None:
    """Build the container image, and write its record."""
    from shardline.environments import image

    image.build_image(project.image, lock=project.lock_file, output=Path(document), log=log)
