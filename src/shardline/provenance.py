"""Where, when and with what a result was made."""

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.files import utc_stamp
from shardline.environments.observed import observe
from shardline.launch.world import World

_PACKAGES = (
    "shardline",
    "torch",
    "pytorch-lightning",
    "numpy",
    "safetensors",
    "scikit-learn",
    "snakemake",
)


def software() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that matter most, as installed."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def git_state(folder: Path) -> dict[str, Any]:
    """Return commit, whether the checkout differs from it, and a digest of the difference.

    The difference (of tracked files, and the names of untracked ones) is not
    kept itself: it may hold what nobody meant to publish. Outside a git
    checkout every value is None.
    """
    commit = git_commit(folder)
    if commit is None:
        return {"commit": None, "dirty": None, "diff_digest": None}
    diff = (_git(folder, "diff", "HEAD") or b"") + (_git(folder, "status", "--porcelain") or b"")
    return {
        "commit": commit,
        "dirty": bool(diff),
        "diff_digest": hashlib.sha256(diff).hexdigest() if diff else None,
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit of a checkout; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    return None if commit is None else commit.decode().strip()


def sources() -> dict[str, Any]:
    """Return the environment and the git state of the project and of Shardline, as they are now."""
    return {
        "software": software(),
        "environment": observe(),
        "git": git_state(Path.cwd()),
        "shardline_git": git_state(Path(__file__).parent),
    }


def _git(folder: Path, *arguments: str) -> bytes | None:
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def now() -> str:
    """Return the present time in UTC, to the second."""
    return utc_stamp(timespec="seconds")


def make_provenance(
    spec: Mapping[str, Any], *, sources: Mapping[str, Any], world: World,
    rehearsed: Mapping[str, Any], manifest_sha256: str, started: str, duration_s: float,
    measured: Mapping[str, Any], training: Mapping[str, Any], tracking: Mapping[str, Any],
    files: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return the provenance document of one trained run.

    Args:
        rehearsed: what each rank said of itself, and what was measured between them.
        measured: `attempts` and what the training measured of itself.
        tracking: tracker -> where it shows the training.
    """
    ranks = rehearsed["ranks"]
    return {
        "run": spec["run"],
        "identity": spec["identity"],
        "dataset": spec["dataset"],
        "manifest_sha256": manifest_sha256,
        "files": dict(files),
        "seed": spec["settings"]["seed"],
        "started": started,
        "ended": now(),
        "duration_s": round(duration_s, 3),
        **measured,
        "training": dict(training),
        "tracking": dict(tracking),
        "world": {
            "world_size": world.world_size,
            "nodes": world.num_nodes,
            "launcher": world.launcher,
            "backend": rehearsed["backend"],
            "ranks": ranks,
        },
        "devices": [rank["device"] for rank in ranks],
        "host": platform.node(),
        **sources,
    }
