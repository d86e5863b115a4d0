"""What the figures were measured on and with."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.reader.competitors import COMPETITORS
from benchmarks.reader.environments import versions_of

PACKAGES = ("shardline", "torch", "numpy", "safetensors")


def describe(packages: Sequence[str] = (), peers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the machine, the versions of our packages and those of each peer's own.

    Args:
        packages: of ours, beside `PACKAGES`.
        peers: environments beside those of the reader's competitors.
    """
    environments = {c.environment for c in COMPETITORS.values() if c.environment} | {*peers}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in (*PACKAGES, *packages)},
        "peers": {name: versions_of(name) for name in sorted(environments)},
    }


def sentence(found: dict[str, Any]) -> str:
    """Return a description as a page has it; of a peer's packages it names the first."""
    versions = [f"{name} {number}" for name, number in found["packages"].items()]
    versions += [pins[0].replace("==", " ") for pins in found["peers"].values()]
    return (
        f"Measured on {found['date']}: {found['cpu']}, {found['cores']} cores, {found['memory']}, "
        f"Linux {found['kernel']}, Python {found['python']}; {', '.join(versions)}.\n"
    )


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
