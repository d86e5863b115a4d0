"""Explicit pin files: every package of a conda environment by URL and digest."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardline.config.project import Project
from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes
from shardline.core.urls import without_secrets

PLATFORM: Final = "linux-64"
# as conda reads a line, from 24.9 on; older ones know no SHA-256
_LINE = re.compile(
    r"(?P<url>\S+/(?P<subdir>[^/#]+)/(?P<file>(?P<name>[^/#]+)-(?P<version>[^-/#]+)-(?P<build>[^-/#]+)"
    r"\.(conda|tar\.bz2)))#sha256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package of an environment, exactly.

    Attributes:
        url: where it is fetched from.
        sha256: digest of the package's file.
        file: name of that file, which holds the next three.
        subdir: platform that it was built for, or `noarch`.
    """

    url: str
    sha256: str
    file: str
    name: str
    version: str
    build: str
    subdir: str

    @property
    def line(self) -> str:
        """How a pin file has it."""
        return f"{self.url}#sha256:{self.sha256}"


def parse_pin(line: str) -> Pin:
    """Read one line of a pin file.

    Raises:
        ValueError: it is no package's URL with a SHA-256.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    return Pin(**match.groupdict())


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


def read_pins(path: Path) -> list[Pin]:
    """Read a pin file.

    Raises:
        ConfigError: it cannot be read, or a line has no digest; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); write it with `make lock`") from None
    pins = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith(("#", "@")):
            continue
        try:
            pins.append(parse_pin(line))
        except ValueError:
            raise ConfigError(
                f"{path} line {number}: {without_secrets(line)} is not the URL of a conda package with "
                "#sha256: and its digest; write the file with `make lock`"
            ) from None
    return pins


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
