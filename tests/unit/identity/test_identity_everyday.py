"""Twenty everyday edits of a research code base: which of them retrain, as documented."""

from pathlib import Path

import pytest

from tests.support.reached import reached
from tests.support.research_code import CODE, EDITS, Edit
from tests.support.workspace import REPOSITORY

ANSWER = {True: "retrains", False: "nothing"}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_what_an_edit_makes_stale(tmp_path: Path, edit: Edit) -> None:
    before = reached(tmp_path / "old", CODE).digest
    assert (reached(tmp_path / "new", edit.apply(CODE)).digest != before) == edit.retrains


def test_nothing_of_this_code_counts_whole(tmp_path: Path) -> None:
    assert reached(tmp_path, CODE).whole == {}


def test_the_documentation_has_this_table() -> None:
    text = (REPOSITORY / "docs" / "identity.md").read_text()
    rows = [f"| {one.name} | {ANSWER[one.retrains]} |" for one in EDITS]
    assert "\n".join(rows) in text
