"""The packages installed in the environment of this process, compared with the lock."""

import json
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from shardline.core.errors import ConfigError
from shardline.core.machine import num_cpus
from shardline.identity.interpreter import (
    Interpreter,
    ask,
    installed_versions,
    plain_versions,
    version_of,
)
from shardline.identity.package_lock import PLAIN, normalize, pinned, without_user
from shardline.records.environments import Installed, ScriptInstalled

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

# Set by the program that started the container: the image's digest. On Azure ML the plugin sets its name.
IMAGE, AZURE_IMAGE = "SHARDLINE_IMAGE_DIGEST", "SNAKEMAKE_AZUREML_IMAGE"
MODULES = "modules"  # in a run's folder of the store: modules that every script can import
_SHOWN = 10
_LOCAL = re.compile(r"\+[a-z0-9]+(\.[a-z0-9]+)*$")  # the label of a version, such as +cu128
# Values in an identity document for a package that no lock pins.
_UNLOCKED, _ABSENT = " (not in the lock)", "not installed"


def find_differences(
    python: str, requirements: Iterable[str], interpreter: Interpreter | None = None
) -> list[str]:
    """Return the differences between the installed and the locked packages, a sentence for each package.

    A local label (`2.13.0+cu128`) is no difference, nor is a package that the lock has only for
    other platforms. For a package that is locked by URL, the installer's record of the URL is
    compared (PEP 610).

    Args:
        python: version such as `3.11`.
        requirements: lines of the lock; a package with several lines must match one of them.
        interpreter: interpreter to check; default: this process's own.
    """
    here = interpreter.python if interpreter else f"{sys.version_info[0]}.{sys.version_info[1]}"
    path = list(interpreter.path) if interpreter else sys.path
    markers = interpreter.markers if interpreter else None
    found = [] if here == python else [f"Python {here} runs, {python} is locked"]
    requirements = [*requirements]
    met = _plainly_met(requirements, path)
    if left := [line for line in requirements if line not in met]:
        found += _differences(left, {normalize(name) for name in met.values()}, path, markers)
    return found


def _plainly_met(requirements: Sequence[str], path: Sequence[str]) -> dict[str, str]:
    """Return the lines `name==version` of which this version is installed as usual, with the names."""
    plain = {line: match for line in requirements if (match := PLAIN.fullmatch(line))}
    versions = plain_versions([match["name"] for match in plain.values()], path)
    return {
        line: match["name"]
        for line, match in plain.items()
        if _LOCAL.sub("", versions.get(match["name"], "")) == match["version"]
    }


def _differences(
    requirements: Sequence[str], met: Collection[str], path: list[str],
    markers: dict[str, str] | None,
) -> list[str]:  # fmt: skip
    """Return the differences of `find_differences`.

    Args:
        met: normalised names of packages of which another line is met.
        markers: values for environment markers; default: those of this process.
    """
    from importlib.metadata import distributions

    from packaging.requirements import Requirement

    found: list[str] = []
    pins: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, requirements):
        if normalize(requirement.name) in met:
            continue
        if requirement.marker is None or requirement.marker.evaluate(markers):
            pins.setdefault(normalize(requirement.name), []).append(requirement)
    for name, allowed in pins.items():
        locked = " or ".join(map(pinned, allowed))
        installed = next(iter(distributions(name=name, path=path)), None)
        if installed is None:
            found.append(f"{name} is not installed, {locked} is locked")
            continue
        if not any(_is_met(one, installed) for one in allowed):
            came = _origin(installed).get("url") if any(one.url for one in allowed) else None
            of = f" of {without_user(came)}" if came else ""
            found.append(f"{name} {version_of(installed)}{of} is installed, {locked} is locked")
    return found


def _is_met(locked: "Requirement", installed: "Distribution") -> bool:
    if locked.url is None:
        return locked.specifier.contains(version_of(installed), prereleases=True)
    origin, (url, _, fragment) = _origin(installed), locked.url.partition("#")
    if "vcs_info" in origin:
        return url.endswith(f"@{origin['vcs_info'].get('commit_id')}")
    if "archive_info" not in origin:
        return False  # from an index, from conda, or editable
    archive = origin["archive_info"]
    known = {f"{key}={value}" for key, value in archive.get("hashes", {}).items()}
    known |= {archive["hash"]} if "hash" in archive else set()
    wanted = {item for item in fragment.split("&") if item.startswith("sha")}
    if wanted and known:  # not every installer records a digest
        return bool(wanted & known)
    return without_user(str(origin.get("url"))) == url


def _origin(installed: "Distribution") -> dict[str, Any]:
    """Return the installer's record of a package's URL (PEP 610); empty for a package from an index."""
    try:
        found = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def requirements_of(packages: Mapping[str, str], locked: Iterable[str]) -> list[str]:
    """Return the packages of an identity's `environment` as lines that pip can read.

    Args:
        packages: version by name; `1 or 2` if a marker chose between versions.
        locked: lines of the lock at that time, with the platforms of each package.
    """
    from packaging.requirements import Requirement

    known: dict[str, list[str]] = {}
    for line in locked:
        requirement = Requirement(line)
        known.setdefault(f"{normalize(requirement.name)} {pinned(requirement)}", []).append(line)
    found: list[str] = []
    for name, text in packages.items():
        versions = [] if text == _ABSENT else text.removesuffix(_UNLOCKED).split(" or ")
        for version in dict.fromkeys(versions):
            pin = f"{name} {version}" if version.startswith("@") else f"{name}=={version}"
            found += known.get(f"{name} {version}", [pin])
    return found


def found_by_rank(locked: Mapping[str, Any], words: Sequence[str]) -> Interpreter | None:
    """Return the interpreter of a script on the rank's machine.

    Args:
        locked: `environment` of `run.json`.
        words: command that starts it; empty if the script uses this process's interpreter.

    Returns:
        None also for an image, whose contents its digest determines.

    Raises:
        ConfigError: the interpreter is missing.
    """
    if not words or locked.get("kind") == "image":
        return None
    return ask(Path(words[0]), f"environment: {words[0]}")


def differences_of(locked: Mapping[str, Any], script: Interpreter | None) -> list[str]:
    """Return the differences between a training's installed and locked packages, a sentence for each package.

    Args:
        locked: `environment` of `run.json`.
        script: interpreter of a script with its own environment.
    """
    if locked.get("kind") == "image":
        return []
    return find_differences(locked["python"], locked["requirements"], script)


def observed_of_script(locked: Mapping[str, Any], words: Sequence[str]) -> ScriptInstalled:
    """Return the record of the environment that a script ran in; for the arguments see `found_by_rank`."""
    found = found_by_rank(locked, words)
    if found is None:
        return ScriptInstalled(kind=locked["kind"], image=locked["image"])
    return ScriptInstalled(kind=locked["kind"], python=found.python, packages=found.packages)


def explain_differences(differences: Sequence[str]) -> str:
    """Return the differences of this environment and the remedy as text; empty if there are none."""
    if not differences:
        return ""
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return (
        f"the environment differs from the lock that results are named after: {'; '.join(differences[:_SHOWN])}{more}; "
        "install the lock (pip install --requirement, with the file that `lock` in the config names, by default "
        "Shardline's requirements.lock), or set runtime.strict_env=warn to continue anyway"
    )


def observe() -> Installed:
    """Return the installed distributions, the packages of a conda prefix and the image's digest.

    Raises:
        ConfigError: the image's digest is invalid.
    """
    return Installed(
        python=platform.python_version(),
        packages=installed_versions(sys.path),
        conda=sorted(path.stem for path in Path(sys.prefix, "conda-meta").glob("*.json")),
        image=image_digest(),
    )


def image_digest() -> str | None:
    """Return the digest of the container image that this process runs in; None outside of images.

    Raises:
        ConfigError: the variable's value is not a digest.
    """
    named = os.environ.get(AZURE_IMAGE, "").partition("@")[2]
    image = os.environ.get(IMAGE) or named or None
    if image and not image.startswith("sha256:"):
        raise ConfigError(f"{IMAGE}={image} is not a digest; set the image's digest, sha256:...")
    return image


class Machine(TypedDict):
    """CPUs that this process may use, and bytes of memory of the machine."""

    num_cpus: int
    memory_bytes: int


def machine() -> Machine:
    """Return the number of CPUs that this process may use, and the machine's memory in bytes."""
    return {
        "num_cpus": num_cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
