"""What the figures were measured on and with."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.reader.competitors import COMPETITORS
from benchmarks.reader.environments import versions_of

PACKAGES = ("shardline", "torch", "numpy", "safetensors")


def describe() -> dict[str, Any]:
    """Return the machine, the versions of our packages and those of each peer's own."""
    environments = {c.environment for c in COMPETITORS.values() if c.environment}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "peers": {name: versions_of(name) for name in sorted(environments)},
    }


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
