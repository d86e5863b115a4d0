"""The tests of frameworks by `--framework`: all, those of one framework, or the one of this commit.

A continuous integration takes one framework on one machine, by the commit: two runs of one commit take
the same. Its other places (hosts, Slurm) are left to `make test-frameworks`.
"""

import hashlib

import pytest

from tests.support.commit import commit_of
from tests.support.frameworks import FRAMEWORKS, QUICK

TITLE = pytest.StashKey[str]()


def framework_of(commit: str) -> str:
    """Return the framework that a commit is tested with."""
    digest = hashlib.sha256(commit.encode()).digest()
    return QUICK[int.from_bytes(digest) % len(QUICK)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that chooses the framework."""
    parser.addoption(
        "--framework", choices=["all", "commit", *FRAMEWORKS], default="all",
        help="which framework of tests/frameworks to run in all places, or that of this commit on this machine",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Choose the framework; all workers choose alike."""
    config.stash[TITLE] = ""
    if config.option.framework == "commit":
        commit = commit_of(config.rootpath)
        chosen = framework_of(commit)
        config.option.framework = f"{chosen} here"
        config.stash[TITLE] = (
            f"frameworks: {chosen} by commit {commit[:12]}; `make test-frameworks` runs all in all places"
        )


def pytest_report_header(config: pytest.Config) -> str:
    """Name the framework before the first test."""
    return config.stash[TITLE]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other frameworks."""
    if config.option.framework == "all":
        return
    left_out = [item for item in items if _is_left_out(item, config.option.framework)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item, chosen: str) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    framework, _, here = chosen.partition(" ")
    of_item = getattr(item, "callspec", None)
    if of_item is None or "framework" not in of_item.params:
        return False
    return of_item.params["framework"] != framework or bool(
        here and item.get_closest_marker("places")
    )
