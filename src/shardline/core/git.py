"""Commit and state of a git checkout."""

import hashlib
import subprocess
from pathlib import Path


def git_state(folder: Path) -> dict[str, str | bool | None]:
    """Return the commit of a checkout, whether the checkout differs from it, and a digest of the diff.

    The diff covers tracked files and the names of untracked files. Only its digest is kept, since
    the diff may contain private text. Outside a git checkout every value is None.
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
    """Return the commit of a checkout; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    return None if commit is None else commit.decode().strip()


def _git(folder: Path, *arguments: str) -> bytes | None:
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
