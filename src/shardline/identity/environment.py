"""Digest of the environment that a stage runs in, read from the lock.

A stage's environment is the Python version and the locked packages that its
code imports, with all that those need. So a newer linter or chart library
retrains nothing, and a newer torch retrains everything.
"""

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardline.core.errors import ConfigError
from shardline.identity.lock_lines import parse_lines, pinned

_TABLES = re.compile(r"^\[\[packages?\]\]", re.MULTILINE)
_VIA = re.compile(r"^\s+#\s*(via\b)?|#\s*via\b")
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
# Import names that differ from the package's by more than spelling. Others are
# found among the installed packages, which takes 0.14 s.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "lightning_fabric": "pytorch-lightning",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The pinned packages and who needs them.

    Attributes:
        versions: version, or `@ URL`, by normalised package name; `1 or 2` where markers choose.
        needs: the packages that a package needs directly.
        pins: a package's lines, as `name==version; marker` or `name @ URL ; marker`.
    """

    versions: dict[str, str]
    needs: dict[str, frozenset[str]]
    pins: dict[str, tuple[str, ...]]

    def environment(self, imports: Iterable[str]) -> dict[str, object]:
        """Return the environment of code that imports these top-level names."""
        packages: dict[str, str] = {}
        pending = [package for name in imports for package in self._packages(name)]
        while pending:
            name = pending.pop()
            if name not in packages:
                packages[name] = self.versions.get(name) or _unlocked_version(name)
                pending.extend(self.needs.get(name, ()))
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return {"python": python, "packages": dict(sorted(packages.items()))}

    def requirements(self, packages: Iterable[str]) -> list[str]:
        """Return the lines of the lock that pin these packages; of those that are not in it, none."""
        return [pin for name in packages for pin in self.pins.get(name, ())]

    def _packages(self, import_name: str) -> set[str]:
        name = normalize(_DISTRIBUTIONS.get(import_name, import_name))
        if name in self.versions:
            return {name}
        # several packages may share one name, as all of azure.* do
        return {normalize(package) for package in _distributions().get(import_name, [import_name])}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@cache
def _unlocked_version(name: str) -> str:
    try:
        return importlib.metadata.version(name) + " (not in the lock)"
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def normalize(name: str) -> str:
    """Return a package name in the one spelling that PEP 503 gives it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def load_lock(
    path: Path, shown: str | None = None, *, setting: str = "lock", is_whole: bool = False
) -> Lock:
    """Read a lock that pip-compile (or `uv pip compile`) wrote, with its `# via` notes.

    Args:
        path: of the lock.
        shown: the path as the user wrote it, for messages.
        setting: what names the lock, likewise.
        is_whole: every package counts, so that notes may be missing.

    Raises:
        ConfigError: the file cannot be read, pins nothing, has no such notes, or has a line that
            pins no package.
    """
    shown = f"{setting}={path if shown is None else shown}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(
            f"{shown}: cannot be read ({found}); check the path, or write it with pip-compile"
        ) from None
    if _TABLES.search(text):  # pylock.toml of uv and pip leaves out who needs a package
        raise ConfigError(
            f"{shown}: a TOML lock, expected a requirements file with `# via` notes; write one with "
            "`uv export --format requirements.txt`, `uv pip compile` or pip-compile"
        )
    versions: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    pins: dict[str, list[str]] = {}
    for line in parse_lines(text, shown, _VIA):
        name, version = normalize(line.requirement.name), pinned(line.requirement)
        pins.setdefault(name, []).append(line.text)
        versions[name] = f"{versions[name]} or {version}" if name in versions else version
        for other in filter(None, map(_NAME.match, line.needed_by)):
            needs.setdefault(normalize(other["name"]), set()).add(name)
    if not versions:
        raise ConfigError(f"{shown}: no line like `package==1.2.3`; write it with pip-compile")
    if not is_whole and not re.search(r"#\s*via\b", text):
        raise ConfigError(
            f"{shown}: no `# via` notes, so what a package needs is not known; "
            "write it with pip-compile or `uv pip compile`"
        )
    return Lock(
        versions=versions,
        needs={key: frozenset(names) for key, names in needs.items()},
        pins={key: tuple(lines) for key, lines in pins.items()},
    )
