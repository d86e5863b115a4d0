"""The pin files of the stages' conda environments."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from shardline.config.project import Project
from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes
from shardline.identity.conda_pins import PLATFORM, Pin, read_pins


def pin_file(project: Project, env: str) -> Path:
    """Return where a stage's pin file is, or would be; Snakemake looks for it by this name."""
    return project.envs / f"{env}.{PLATFORM}.pin.txt"


def existing_pin_file(project: Project, env: str) -> Path:
    """Return a stage's pin file.

    Raises:
        ConfigError: there is none.
    """
    path = pin_file(project, env)
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}, from which the environment {env!r} is made; write it with `make lock` (or "
            f"`snakemake lock_envs`) where conda.channels={project.conda.channels} can be reached"
        )
    return path


def write_pins(project: Project, env: str, pins: Iterable[Pin]) -> None:
    """Write a stage's pin file.

    Raises:
        DataError: it cannot be written.
    """
    lines = [
        f"# The solution of {env}.yaml, written by `make lock`.",
        f"# platform: {PLATFORM}",
        "@EXPLICIT",
        *sorted(pin.line for pin in pins),
    ]
    write_bytes(pin_file(project, env), "".join(f"{line}\n" for line in lines).encode())


def unmet_specs(pins: Sequence[Pin], specs: Iterable[str]) -> list[str]:
    """Return the specs that no pin satisfies, by rattler's own reading of both."""
    from rattler import BuildString, MatchSpec, PackageRecord

    records = [
        PackageRecord(pin.name, pin.version, BuildString(pin.build), 0, pin.subdir) for pin in pins
    ]
    return [
        spec for spec in specs if not any(MatchSpec(spec).matches(record) for record in records)
    ]


def checked_pins(path: Path, specs: Iterable[str]) -> list[Pin]:
    """Read a pin file that must satisfy what its environment file asks for.

    Raises:
        ConfigError: it cannot be read, names a package twice or fails to satisfy a spec.
    """
    pins = read_pins(path)
    if len({pin.name for pin in pins}) < len(pins):
        raise ConfigError(f"{path} names a package twice; write it with `make lock`")
    if unmet := unmet_specs(pins, specs):
        raise ConfigError(
            f"{path} has drifted from its environment file: nothing in it is {', '.join(unmet)}; "
            "write it again with `make lock`"
        )
    return pins
