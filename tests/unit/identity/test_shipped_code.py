"""Shardline's own code that was edited where it is installed is reported; a refactoring that was recorded is not."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shardline.cli import app
from shardline.identity import shipped_code
from shardline.identity.code_index import LIBRARY
from shardline.identity.shipped_code import (
    TABLE,
    edited_files,
    history_of,
    meaning,
    sentence_of,
    table_of,
)
from shardline.identity.versions import HISTORIES, MODELS, SOURCES
from shardline.pipeline.hooks import open_project
from tests.support.fake_project import FakeProject

CNN = "shardline/training/models/cnn.py"
ALL = frozenset(HISTORIES)


def test_the_table_is_of_the_present_code(request: pytest.FixtureRequest) -> None:
    table = table_of()
    if request.config.getoption("--regen"):
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    recorded = json.loads(TABLE.read_bytes())
    assert recorded["versions"] == table["versions"]
    assert recorded["files"].keys() == table["files"].keys()
    meant = [
        {name: digests.split()[1] for name, digests in one["files"].items()}
        for one in (recorded, table)
    ]
    assert meant[0] == meant[1], "pytest --regen tests/unit/identity/test_shipped_code.py"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The table of the present code, which may be edited, in the place of the recorded one."""
    found = table_of()
    monkeypatch.setattr(shipped_code, "TABLE", tmp_path / "table.json")
    (tmp_path / "table.json").write_text(json.dumps(found))
    return found


@pytest.fixture
def fork(tmp_path: Path, table: dict[str, Any]) -> Path:
    """A copy of the library, in which files may be edited."""
    for name in table["files"]:
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(LIBRARY / name, tmp_path / "lib" / name)
    return tmp_path / "lib"


def edit(fork: Path, name: str, old: str, new: str) -> None:
    text = (fork / name).read_text()
    assert old in text
    (fork / name).write_text(text.replace(old, new, 1))


def test_an_edit_that_means_something_is_found_for_those_that_use_it(fork: Path) -> None:
    assert edited_files(ALL, fork) == {}
    edit(fork, CNN, "def forward", "# a comment\n    def forward")
    edit(fork, CNN, '"""', '"""Another docstring. ')
    assert edited_files(ALL, fork) == {}
    edit(fork, CNN, "return ", "return 2 * ")
    edit(fork, "shardline/data/sources/digits.py", "import ", "import json, ")
    edit(fork, "shardline/training/models/classifier_base.py", "import ", "import json, ")
    (fork / "shardline/training/more.py").write_text("x = 1")
    (fork / "shardline_io/broken.py").write_text("x = ")
    base = {"shardline/training/models/classifier_base.py": "classifier"}
    assert edited_files({"cnn"}, fork) == {CNN: "cnn", **base}
    assert edited_files({"linear"}, fork) == base
    assert edited_files({"digits"}, fork) == {"shardline/data/sources/digits.py": "digits"}
    assert edited_files({"training"}, fork) == {"shardline/training/more.py": "training"}
    assert edited_files({"io"}, fork) == {"shardline_io/broken.py": "io"}
    assert edited_files({"report"}, fork) == {}
    sentence = sentence_of(edited_files(ALL, fork))
    assert sentence.count("\n") == 0
    assert "and 2 more)" in sentence
    for way in ("move the edit to a class of your own", "add a line to the history"):
        assert way in sentence


def test_a_new_line_of_its_history_ends_the_report(
    fork: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(fork, CNN, "return ", "return 2 * ")
    longer = {**HISTORIES, "cnn": (*HISTORIES["cnn"], HISTORIES["cnn"][0])}
    monkeypatch.setattr(shipped_code, "HISTORIES", longer)
    assert edited_files(ALL, fork) == {}


def test_each_shipped_model_and_source_has_its_history() -> None:
    found = {history_of(name) for name in table_of()["files"]}
    assert found >= {*MODELS, *SOURCES, "data", "training", "evaluation", "io", "classifier"}


def test_meaning_does_not_depend_on_layout() -> None:
    one = meaning(b"def f(x):\n    'doc'\n    return {'a': x}  # comment\n")
    assert one == meaning(b"def f( x ):\n    return {\n        'a': x,\n    }\n")
    assert one != meaning(b"def f(x):\n    return {'b': x}\n")
    assert len({meaning(b"x = 1"), meaning(b"x = 1.0"), meaning(b"x = '1'"), meaning(b"x =")}) == 4


def test_start_and_why_report_it_in_one_line(
    fake: FakeProject, table: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    table["files"]["shardline/training/models/linear.py"] = "other other"
    shipped_code.TABLE.write_text(json.dumps(table))
    fake.seal_all()
    with caplog.at_level(logging.WARNING, logger="shardline"):
        open_project(
            fake.config,
            None,
            is_main=True,
            is_making=True,
            is_remote=False,
            has_no_shared_disk=False,
        )
    (record,) = (one for one in caplog.records if "own code was edited" in one.getMessage())
    assert "shardline/training/models/linear.py" in record.getMessage()
    assert '"linear"' in record.getMessage()
    said = CliRunner().invoke(app, ["why", "flat"]).stdout
    assert said.count("own code was edited") == 1
    assert "own code was edited" not in CliRunner().invoke(app, ["why", "net"]).stdout
