"""`shardline data show` and `shardline data init`: text, JSON, exit codes, a narrow terminal."""

import json

import pytest
import yaml

from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject

CSV = {"type": "csv", "files": ["tables/*"], "label": "y", "classes": ["a", "b"]}


@pytest.fixture
def project(fake: FakeProject) -> FakeProject:
    """A project whose dataset `rows` has a class that is no source."""
    fake.workspace.write("tables/a.csv", "x,y\n" + "1.5,a\n2,b\n" * 20)
    fake.config["datasets"]["table"] = {"source": CSV, "shards": 1}
    fake.config["datasets"]["unused"] = {"source": {**CSV, "label": "x", "classes": [1.5, 2]}, "shards": 1}  # fmt: skip
    fake.config["datasets"]["unused"]["source"]["classes"] = ["1.5", "2"]
    fake.workspace.configure(fake.config, fake.rows)
    return fake


def test_a_dataset_is_shown_as_text_and_as_json(project: FakeProject) -> None:
    result = shardline("data", "show", "table")
    assert result.exit_code == 0, result.output
    assert "dataset table is read as\n  dataset: " in result.stdout
    assert ", not built yet\n  rows: 40\n" in result.stdout
    assert "  a row: features (1.5), labels (a)\n" in result.stdout
    (found,) = json.loads(shardline("data", "show", "table", "--json").stdout)
    assert (found["dataset"], found["is_built"]) == ("table", False)
    assert found["read"]["rows"] == 40
    assert found["read"]["a row"] == {"features": "1.5", "labels": "a"}


def test_all_datasets_of_the_config_are_shown_and_errors_come_last(project: FakeProject) -> None:
    result = shardline("data", "show")
    assert result.exit_code == 3
    assert "dataset table is read as\n" in result.stdout
    assert "rows cannot be read: source.type=mypkg.sources:Rows does not import" in result.stdout
    assert "unused" in result.stdout, "also those that no run uses"
    assert shardline("data", "show", "tables").exit_code == 2


def test_a_narrow_terminal_breaks_between_words(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = shardline("data", "show", "table").stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert "  features, all columns of numbers: x" in lines


def test_an_entry_is_printed_and_inserted(project: FakeProject) -> None:
    result = shardline("data", "init", "tables/a.csv", "--name", "new")
    assert result.exit_code == 0, result.output
    printed = yaml.safe_load(result.stdout)["datasets"]["new"]
    assert printed["source"] == {
        "type": "csv", "files": ["tables/a.csv"], "label": "y", "classes": ["a", "b"],
    }  # fmt: skip
    assert "label: y # a guess; the other columns are x" in result.stdout
    assert "dataset new is read as\n  rows: 40\n" in result.stderr
    found = json.loads(shardline("data", "init", "tables/a.csv", "--name", "new", "--json").stdout)
    assert (found["name"], found["settings"]) == ("new", printed)
    assert "label" in found["comments"]


def test_an_entry_is_inserted_into_the_config(project: FakeProject) -> None:
    path = project.workspace.path / "config/config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()), default_flow_style=False))
    result = shardline("data", "init", "tables/a.csv", "--name", "new", "--write")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("`shardline data show new` shows what is read\n")
    # an entry with the same rows is the same dataset
    assert "dataset table, new is read as" in shardline("data", "show", "new").stdout
    again = shardline("data", "init", "tables/a.csv", "--name", "new", "--write")
    assert again.exit_code == 2
    assert "datasets.new exists already" in again.stderr


def test_what_is_no_data_is_one_sentence(project: FakeProject) -> None:
    result = shardline("data", "init", "nowhere.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("nowhere.csv: not found, expected a file")
