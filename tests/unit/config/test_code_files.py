"""Files that a model's code reads, named in the column `code_files`: their bytes count."""

from pathlib import Path

import pytest

from shardline.config.layout import ResultsLayout
from shardline.errors import ConfigError
from shardline.results.verify_runs import verify_run
from tests.support.fake_project import FakeProject

HERE = ResultsLayout(root=Path())  # the present folder


def named(fake: FakeProject, value: str) -> str:
    fake.rows[0]["code_files"] = value
    return fake.run("net").id


def test_the_bytes_of_a_named_file_count_and_an_empty_cell_changes_nothing(fake):
    before = fake.run("net").id
    assert named(fake, "") == before
    fake.workspace.write("conf/a.yaml", "1")
    fake.workspace.write("conf/b.yaml", "2")
    first = named(fake, "conf/*.yaml")
    assert first != before
    assert named(fake, "conf/a.yaml conf/b.yaml") == first, (
        "the bytes count, not how they are named"
    )
    assert "code_files" not in fake.run("net").document["settings"]
    fake.workspace.write("conf/b.yaml", "3")
    assert named(fake, "conf/*.yaml") != first
    fake.workspace.write("conf/b.yaml", "2")
    assert named(fake, "conf/*.yaml") == first
    fake.workspace.write("conf/c.yaml", "4")
    assert named(fake, "conf/*.yaml") != first


def test_why_names_the_file_and_verify_is_content(fake):
    fake.workspace.write("vocab.txt", "a")
    named(fake, "vocab.txt")
    fake.seal_all()
    assert verify_run(HERE, fake.run("net").id).problems == []
    fake.workspace.write("vocab.txt", "b")
    assert fake.why("net") == ["source bytes changed in vocab.txt"]


def test_a_pattern_that_matches_nothing_is_refused(fake):
    with pytest.raises(
        ConfigError, match=r'\(run "net"\): code_files: none/\*.txt matches no file'
    ):
        named(fake, "none/*.txt")
