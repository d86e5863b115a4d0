"""Compare the environment of a training with the lock."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import UNSET, structs
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shardline.records.reported_parts import ReportedEnvironment
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance


def describe_environment(spec: ResolvedRun, provenance: TrainingProvenance) -> ReportedEnvironment:
    """Return the environment of a training and its differences from the lock."""
    recorded, software = provenance.environment, provenance.software
    packages = None if recorded.packages is UNSET else recorded.packages
    found = ReportedEnvironment(
        python=recorded.python or software.get("python"),
        platform=software.get("platform"),
        image=recorded.image,
    )
    if packages is None:
        return found
    differences = find_differences(spec.environment, recorded.python, packages)
    return structs.replace(
        found,
        num_packages=len(packages),
        sha256=_digest(packages) if packages else None,
        differences=differences,
    )


def find_differences(
    locked: Mapping[str, Any], python: str | None, packages: Mapping[str, str]
) -> list[str]:
    """Return the differences between installed and locked packages, one sentence each.

    Args:
        locked: `python` version and `requirements` of the lock.
        python: Version of Python that ran.
        packages: Installed versions by package name.
    """
    python, expected = python or "", locked.get("python")
    same = not expected or python == expected or python.startswith(f"{expected}.")
    found = [] if same else [f"Python {python} ran, {expected} is locked"]
    pins: dict[str, list[Requirement]] = {}
    for line in locked.get("requirements", ()):
        requirement = _parse(line)
        pins.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for name, allowed in sorted(pins.items()):
        found.extend(_difference(name, packages.get(name), allowed))
    return found


@cache
def _parse(line: str) -> Requirement:
    return Requirement(line)


def _difference(name: str, version: str | None, allowed: Sequence[Requirement]) -> list[str]:
    locked = " or ".join(str(one.specifier).removeprefix("==") for one in allowed)
    if version is None:
        # the lock may pin it only for other platforms
        is_for_all = any(one.marker is None for one in allowed)
        return [f"{name} was not installed, {locked} is locked"] if is_for_all else []
    if any(one.specifier.contains(version, prereleases=True) for one in allowed):
        return []
    return [f"{name} {version} was installed, {locked} is locked"]


def _digest(packages: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
