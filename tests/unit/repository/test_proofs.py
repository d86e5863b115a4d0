"""What the documentation names as a proof exists."""

import ast
import re

import pytest

from tests.support.workspace import REPOSITORY

TESTS = REPOSITORY / "tests"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs/contributing").glob("*.md")),
]
NAMED = re.compile(r"`(?:tests/)?((?:\w+/)+test_\w+\.py)(?:::(\w+))?")


def functions_of(file: str) -> set[str]:
    """Return the names of a file's test functions."""
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_exists(page):
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    files = {file for file, _ in named}
    assert sorted(file for file in files if not (TESTS / file).is_file()) == []
    assert (
        sorted(f"{file}::{test}" for file, test in named if test and test not in functions_of(file))
        == []
    )


def test_every_file_of_tests_proves_something_that_the_map_names():
    text = (REPOSITORY / "docs/contributing/tests.md").read_text(encoding="utf-8")
    files = {
        str(path.relative_to(TESTS))
        for at in ("*", "unit/*")
        for path in TESTS.glob(f"{at}/test_*.py")
    }
    assert sorted(files - {file for file, _ in NAMED.findall(text)}) == []
