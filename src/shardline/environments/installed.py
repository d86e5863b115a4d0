"""The environment that a process truly runs in, beside the one that its results are named after."""

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from shardline.core.errors import ConfigError
from shardline.core.machine import num_cpus
from shardline.identity.interpreter import Interpreter, ask
from shardline.identity.package_lock import normalize, pinned, without_user
from shardline.records.runs import Installed, ScriptInstalled

# Set by what started the container: the image's digest; on Azure ML the plugin sets the image's name.
IMAGE, AZURE_IMAGE = "SHARDLINE_IMAGE_DIGEST", "SNAKEMAKE_AZUREML_IMAGE"
MODULES = "modules"  # of a run's folder in the store: what every script can import
_SHOWN = 10
# What an identity document holds for a package that no lock pins.
_UNLOCKED, _ABSENT = " (not in the lock)", "not installed"


def find_differences(
    python: str, requirements: Iterable[str], interpreter: Interpreter | None = None
) -> list[str]:
    """Return how what is installed differs from what is locked, a sentence for each package.

    A local label (`2.13.0+cu128`) is no difference, nor is a package that the lock has for
    other platforms alone. A package that is locked by its URL is verified against what its installer
    wrote down (PEP 610).

    Args:
        python: version such as `3.11`.
        requirements: lines of the lock; a package with several matches one of them.
        interpreter: the one that is looked at; this process's own if left out.
    """
    here = interpreter.python if interpreter else f"{sys.version_info[0]}.{sys.version_info[1]}"
    path = list(interpreter.path) if interpreter else sys.path
    markers = interpreter.markers if interpreter else None
    found = [] if here == python else [f"Python {here} runs, {python} is locked"]
    pins: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate(markers):
            pins.setdefault(normalize(requirement.name), []).append(requirement)
    for name, allowed in pins.items():
        locked = " or ".join(map(pinned, allowed))
        installed = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
        if installed is None:
            found.append(f"{name} is not installed, {locked} is locked")
            continue
        if not any(_is_met(one, installed) for one in allowed):
            came = _origin(installed).get("url") if any(one.url for one in allowed) else None
            of = f" of {without_user(came)}" if came else ""
            found.append(f"{name} {installed.version}{of} is installed, {locked} is locked")
    return found


def _is_met(locked: Requirement, installed: importlib.metadata.Distribution) -> bool:
    if locked.url is None:
        return locked.specifier.contains(installed.version, prereleases=True)
    origin, (url, _, fragment) = _origin(installed), locked.url.partition("#")
    if "vcs_info" in origin:
        return url.endswith(f"@{origin['vcs_info'].get('commit_id')}")
    if "archive_info" not in origin:
        return False  # from an index, from conda, or editable
    archive = origin["archive_info"]
    known = {f"{key}={value}" for key, value in archive.get("hashes", {}).items()}
    known |= {archive["hash"]} if "hash" in archive else set()
    wanted = {item for item in fragment.split("&") if item.startswith("sha")}
    if wanted and known:  # not every installer writes down a digest
        return bool(wanted & known)
    return without_user(str(origin.get("url"))) == url


def _origin(installed: importlib.metadata.Distribution) -> dict[str, Any]:
    """Return where a package that came by its URL is from (PEP 610); nothing of one from an index."""
    try:
        found = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def requirements_of(packages: Mapping[str, str], locked: Iterable[str]) -> list[str]:
    """Return the packages of an identity's `environment` as lines that pip would read.

    Args:
        packages: version by name; `1 or 2` where a marker chose.
        locked: lines of the lock of then, which know for which platform a package is.
    """
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
    """Return the interpreter of a script as a rank finds it on its machine.

    Args:
        locked: `environment` of `run.json`.
        words: start it; none: the script has this process's.

    Returns:
        None also of an image, whose digest tells what is in it.

    Raises:
        ConfigError: it is not there.
    """
    if not words or locked.get("kind") == "image":
        return None
    return ask(Path(words[0]), f"environment: {words[0]}")


def differences_of(locked: Mapping[str, Any], script: Interpreter | None) -> list[str]:
    """Return how what is installed for a training differs from what is locked, a sentence for each package.

    Args:
        locked: `environment` of `run.json`.
        script: the interpreter of a script with an environment of its own.
    """
    if locked.get("kind") == "image":
        return []
    return find_differences(locked["python"], locked["requirements"], script)


def observed_of_script(locked: Mapping[str, Any], words: Sequence[str]) -> ScriptInstalled:
    """Return what is recorded of the environment that a script ran in; arguments as of `found_by_rank`."""
    found = found_by_rank(locked, words)
    if found is None:
        return ScriptInstalled(kind=locked["kind"], image=locked["image"])
    return ScriptInstalled(kind=locked["kind"], python=found.python, packages=found.packages)


def explain_differences(differences: Sequence[str]) -> str:
    """Return what is wrong with this environment and what to do; nothing where it is as locked."""
    if not differences:
        return ""
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return (
        f"the environment is not the one that results are named after: {'; '.join(differences[:_SHOWN])}{more}; "
        "install the lock (pip install --requirement, with the file that `lock` in the config names, by default "
        "Shardline's requirements.lock), or set runtime.strict_env=warn to go on all the same"
    )


def observe() -> Installed:
    """Return what is installed here: every distribution, a conda prefix's packages, the image's digest.

    Raises:
        ConfigError: the image's digest is none.
    """
    # the first of two with one name is the one that is imported
    distributions = reversed(list(importlib.metadata.distributions()))
    packages = {normalize(one.name): one.version for one in distributions}
    return Installed(
        python=platform.python_version(),
        packages=dict(sorted(packages.items())),
        conda=sorted(path.stem for path in Path(sys.prefix, "conda-meta").glob("*.json")),
        image=image_digest(),
    )


def image_digest() -> str | None:
    """Return the digest of the container image that this process runs in; None outside of one.

    Raises:
        ConfigError: the variable's value is no digest.
    """
    named = os.environ.get(AZURE_IMAGE, "").partition("@")[2]
    image = os.environ.get(IMAGE) or named or None
    if image and not image.startswith("sha256:"):
        raise ConfigError(f"{IMAGE}={image} is no digest; set it to the image's, as sha256:...")
    return image


def machine() -> dict[str, int]:
    """Return the CPUs that this process may use, and its machine's memory."""
    return {
        "num_cpus": num_cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
