"""The commit that is tested, by which a run chooses tests."""

import subprocess
from pathlib import Path


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, which may be another user's; empty where there is none."""
    asked = ["git", "-c", "safe.directory=*", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
