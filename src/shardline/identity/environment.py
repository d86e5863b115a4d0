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

from shardline.errors import ConfigError

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^\s;\\]+)")
_VIA = re.compile(r"^\s+#\s*(via\s+)?(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?(\s|$)")
# import names that differ from the package's by more than spelling
_DISTRIBUTIONS = {"yaml": "pyyaml", "sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python"}


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The pinned packages and who needs them.

    Attributes:
        versions: version by normalised package name.
        needs: the packages that a package needs directly.
    """

    versions: dict[str, str]
    needs: dict[str, frozenset[str]]

    def environment(self, imports: Iterable[str]) -> dict[str, object]:
        """Return the environment of code that imports these top-level names."""
        packages: dict[str, str] = {}
        pending = [self._package(name) for name in imports]
        while pending:
            name = pending.pop()
            if name not in packages:
                packages[name] = self.versions.get(name) or _unlocked_version(name)
                pending.extend(self.needs.get(name, ()))
        return {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", "packages": packages}

    def _package(self, import_name: str) -> str:
        name = normalize(_DISTRIBUTIONS.get(import_name, import_name))
        if name in self.versions:
            return name
        return normalize(_distributions().get(import_name, [import_name])[0])


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def _unlocked_version(name: str) -> str:
    try:
        return importlib.metadata.version(name) + " (not in the lock)"
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def normalize(name: str) -> str:
    """Return a package name in the one spelling that PEP 503 gives it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def load_lock(path: Path) -> Lock:
    """Read a lock that pip-compile (or `uv pip compile`) wrote, with its `# via` lines.

    Raises:
        ConfigError: the file is missing or pins nothing.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"lock={path}: cannot be read ({error.strerror}); run `make lock`") from None
    versions: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    current = None
    for line in lines:
        if match := _PIN.match(line):
            current = normalize(match["name"])
            versions[current] = match["version"]
        elif current and (match := _VIA.match(line)) and match["name"] != "via":
            needs.setdefault(normalize(match["name"]), set()).add(current)
    if not versions:
        raise ConfigError(f"lock={path}: no line like `package==1.2.3`; run `make lock`")
    return Lock(versions=versions, needs={k: frozenset(v) for k, v in needs.items()})


def default_lock() -> Path:
    """Return the lock of this copy of Shardline: the checkout's, or the installed one."""
    package = Path(__file__).parents[1]
    checkout = package.parents[1] / "requirements.lock"
    return checkout if checkout.is_file() else package / "requirements.lock"
