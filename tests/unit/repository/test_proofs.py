"""What the documentation names as a proof exists."""

import ast
import re

import pytest
import yaml

from tests.support.workspace import REPOSITORY

TESTS = REPOSITORY / "tests"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(
        path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "decisions"
    ),
]
MAP = REPOSITORY / "docs/contributing/proofs.yaml"
NAMED = re.compile(r"`(?:tests/)?((?:\w+/)+test_\w+\.py)(?:::(\w+))?")


def functions_of(file: str) -> set[str]:
    """Return the names of a file's test functions."""
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def proofs() -> list[tuple[str, str]]:
    """Return each file of tests that the map names, with the name of a test or an empty one."""
    sections = yaml.safe_load(MAP.read_text(encoding="utf-8"))
    named = [test for rows in sections.values() for row in rows for test in row["tests"]]
    return [(file, test) for file, _, test in (name.partition("::") for name in named)]


def missing(named: list[tuple[str, str]]) -> list[str]:
    """Return the files and tests that do not exist."""
    files = {file for file, _ in named}
    absent = {file for file in files if not (TESTS / file).is_file()}
    tests = {(file, test) for file, test in named if test and file not in absent}
    return sorted(absent) + sorted(
        f"{file}::{test}" for file, test in tests if test not in functions_of(file)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_test_that_a_page_names_exists(page):
    assert missing(NAMED.findall(page.read_text(encoding="utf-8"))) == []


def test_every_test_that_the_map_names_exists():
    assert missing(proofs()) == []


def test_every_file_of_tests_proves_something_that_the_map_names():
    files = {
        str(path.relative_to(TESTS))
        for at in ("*", "unit/*")
        for path in TESTS.glob(f"{at}/test_*.py")
    }
    assert sorted(files - {file for file, _ in proofs()}) == []
