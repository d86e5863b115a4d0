"""Everyday edits of a research code base: which of them retrain, as documented."""

import re
from pathlib import Path

import pytest

from tests.support.reached import reached
from tests.support.research_code import CODE, EDITS, Edit
from tests.support.workspace import REPOSITORY

# Rows of the documentation's table, and the edits that prove each of them.
ROWS = {
    "change a comment, a docstring, the format": {
        "change a comment", "write a docstring", "run a formatter",
    },
    "rename a local variable, annotate a method": {"rename a local variable", "annotate a method"},
    "edit another model in the same file": {"edit another model of the file"},
    "reorder functions or imports, move a class to another module": {
        "put functions into another order", "sort imports, drop an unused one", "move a layer into a module of its own",
    },
    "change the loss, or a default of the model": {"change the loss", "change a default of the model"},
    "split a method in two, reorder methods": {
        "split a method of the model in two", "put methods into another order",
    },
}  # fmt: skip
RETRAINS = {"retrains": True, "nothing": False}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_what_an_edit_makes_stale(tmp_path: Path, edit: Edit) -> None:
    before = reached(tmp_path / "old", CODE).digest
    assert (reached(tmp_path / "new", edit.apply(CODE)).digest != before) == edit.retrains


def test_nothing_of_this_code_counts_whole(tmp_path: Path) -> None:
    assert reached(tmp_path, CODE).whole == {}


def test_the_documentations_table_is_proven_by_these_edits() -> None:
    text = (REPOSITORY / "docs/concepts/identity.md").read_text()
    table = text.partition("| edit | effect |\n| --- | --- |\n")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| (.+) \| (\w+) \|$", table, re.MULTILINE))
    assert list(shown) == list(ROWS)
    retrains = {edit.name: edit.retrains for edit in EDITS}
    for row, effect in shown.items():
        assert {retrains[name] for name in ROWS[row]} == {RETRAINS[effect]}, row
