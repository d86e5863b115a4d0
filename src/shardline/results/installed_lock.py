"""The lock of a new project: the shipped one, or the packages that are installed."""

import importlib.metadata
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from shardline.environments.installed import find_differences
from shardline.identity.package_lock import load_lock, normalize

_OURS = {"shardline", "shardline-io", "snakemake-logger-plugin-shardline"}
_LEFT_OUT = {*_OURS, "pip"}


def lock_of_project(shipped: Path) -> bytes:
    """Return the shipped lock if its packages are installed here, and else a lock of those that are installed.

    So a project runs in the environment in which it was created, whatever versions that has.

    Args:
        shipped: lock of Shardline.
    """
    pins = load_lock(shipped).pins.values()
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not find_differences(python, [line for lines in pins for line in lines]):
        return shipped.read_bytes()
    return lock_of_installed().encode()


def lock_of_installed() -> str:
    """Return the installed packages in the format of pip-compile, with `# via` notes.

    Shardline, pip and editable projects are left out, since a lock cannot pin their content. So are
    labels of builds such as `+cpu`.
    """
    known: dict[str, importlib.metadata.Distribution] = {}
    for one in importlib.metadata.distributions():  # of two with one name, the first is imported
        known.setdefault(normalize(one.name), one)
    needed_by = _needed_by(known)
    lines = [
        f"# Written by `shardline init` from the packages that were installed, with Python "
        f"{sys.version_info[0]}.{sys.version_info[1]}."
    ]
    for name, one in sorted(known.items()):
        pin = None if name in _LEFT_OUT else _pin_of(name, one)
        if pin is not None:
            lines.append(pin)
            if parents := needed_by.get(name):
                lines += ["    # via", *(f"    #   {parent}" for parent in sorted(parents))]
    return "\n".join(lines) + "\n"


def _pin_of(name: str, one: importlib.metadata.Distribution) -> str | None:
    """Return the line of a package; None if a lock cannot pin it."""
    try:
        origin = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    if "dir_info" in origin:
        return None
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        return f"{name} @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    hashes = origin.get("archive_info", {}).get("hashes", {})
    if url.startswith(("http://", "https://")) and "sha256" in hashes:
        return f"{name} @ {url.partition('#')[0]}#sha256={hashes['sha256']}"
    return f"{name}=={one.version.partition('+')[0]}"


def _needed_by(known: Mapping[str, importlib.metadata.Distribution]) -> dict[str, set[str]]:
    """Return the packages that require each package, also by an extra that another package requests."""
    requirements = {
        name: [Requirement(text) for text in one.requires or ()] for name, one in known.items()
    }
    extras: dict[str, set[str]] = defaultdict(lambda: {""})
    found: dict[str, set[str]] = defaultdict(set)
    pending = [*requirements]
    while pending:
        parent = pending.pop()
        for one in requirements.get(parent, ()):
            if parent in _OURS or _applies(one, extras[parent]):
                name = normalize(one.name)
                found[name].add(parent)
                if not one.extras <= extras[name]:  # which may need more packages
                    extras[name] |= one.extras
                    pending.append(name)
    return found


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    if (marker := requirement.marker) is None:
        return True
    for extra in extras:
        with suppress(InvalidVersion):  # a marker such as `extra == "0.5"` is compared as a version
            if marker.evaluate({"extra": extra}):
                return True
    return False
