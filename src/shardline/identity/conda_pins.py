"""Explicit pin files of conda: every package of an environment by URL and digest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardline.core.errors import ConfigError
from shardline.identity.package_lock import without_user

_TOKEN = re.compile(r"(?<=[^/])/t/[^/\s]+(?=/)")  # as URLs of private channels hold it
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
    def public_url(self) -> str:
        """The URL without a login or token."""
        return without_token(without_user(self.url))

    @property
    def line(self) -> str:
        """How a pin file has it."""
        return f"{self.url}#sha256:{self.sha256}"


def without_token(url: str) -> str:
    """Return a channel's URL without the token of `/t/TOKEN/`."""
    return _TOKEN.sub("", url)


def parse_pin(line: str) -> Pin:
    """Read one line of a pin file.

    Raises:
        ValueError: it is no package's URL with a SHA-256.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    return Pin(**match.groupdict())


def content_of(pins: Sequence[Pin]) -> dict[str, Any]:
    """Return what tells one environment from another: its packages to the byte, and the platform."""
    return {"packages": sorted([pin.file, pin.sha256] for pin in pins), "platform": PLATFORM}


def read_pins(path: Path, *, remedy: str = "write it with `make lock`") -> list[Pin]:
    """Read a pin file.

    Args:
        remedy: ends the messages.

    Raises:
        ConfigError: it cannot be read, or a line has no digest; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {remedy}") from None
    pins = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith(("#", "@")):
            continue
        try:
            pins.append(parse_pin(line))
        except ValueError:
            raise ConfigError(
                f"{path} line {number}: {without_token(without_user(line))} is not the URL of a conda package "
                f"with #sha256: and its digest; {remedy}"
            ) from None
    return pins
