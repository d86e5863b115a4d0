"""The packages of Lightning that tests run with: pytorch_lightning, and `lightning` in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

from shardline.core.one_lightning import DISTRIBUTIONS
from tests.support.commit import commit_of
from tests.support.workspace import REPOSITORY

_NAME = "SHARDLINE_TEST_LIGHTNING"


def in_this_process() -> list[str]:
    """Return the package that a process of tests was started for; empty for pytorch_lightning."""
    return [one for one in DISTRIBUTIONS if one == os.environ.get(_NAME)]


def in_turn() -> str:
    """Return the package that tests which run with one package in turn have by this commit."""
    given = os.environ.get(_NAME)
    return given or [*DISTRIBUTIONS][int(commit_of(REPOSITORY)[:8] or "0", 16) % 2]


def run_tests_with(package: str, *arguments: str, newer: Path | None = None) -> str:
    """Run tests with a package in a process of their own, and return what pytest printed; they must pass.

    Args:
        arguments: tests, and options of pytest.
        newer: folder with packages that are used in place of the installed ones.
    """
    paths = [*([str(newer)] if newer else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, _NAME: package, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
