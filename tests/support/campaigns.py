"""What generated cases start from."""

import os
import subprocess

from tests.support.workspace import REPOSITORY


def campaign_seed() -> int:
    """Return SHARDLINE_SEED, or a seed of the present commit.

    Each commit has its own, and each worker and each retry of its tests the same one. A test
    shows it in its id.
    """
    if given := os.environ.get("SHARDLINE_SEED"):
        return int(given)
    # a user who doesn't own the clone reads its commit as well
    git = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY)]
    command = [*git, "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(commit[:8] or "0", 16)
