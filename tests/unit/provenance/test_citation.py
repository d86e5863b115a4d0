"""This repository's CITATION.cff, and what a crate takes from a project's own."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from shardline import __version__
from shardline.errors import ConfigError
from shardline.provenance.crate.citation import authors_of, license_of, publisher_of, read_citation
from shardline.provenance.crate.contents import Contents, Item
from shardline.provenance.crate.entities import Entities
from tests.support.workspace import REPOSITORY

# Citation File Format 1.2.0, its top level.
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers",
    "keywords", "license", "license-url", "message", "preferred-citation", "references", "repository",
    "repository-artifact", "repository-code", "title", "type", "url", "version",
}  # fmt: skip


def test_shardlines_own_citation_has_the_form_and_says_what_the_package_says():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    package = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {"authors", "cff-version", "message", "title"} <= cited.keys() <= KEYS
    assert cited["cff-version"] == "1.2.0"
    assert (cited["type"], cited["license"]) == ("software", package["license"])
    assert str(cited["version"]) == package["version"] == __version__
    assert cited["authors"] == package["authors"]
    assert len(set(cited["keywords"])) == len(cited["keywords"]) > 0


def contents(text: str | None) -> Contents:
    items = {} if text is None else {"CITATION.cff": Item(source=text.encode())}
    project: Any = SimpleNamespace()
    records: Any = None
    return Contents(project=project, records=records, with_data=False, items=items)


def test_people_and_their_institute():
    cited = read_citation(
        contents(
            "authors:\n- {given-names: Ada, family-names: L, affiliation: An Institute}\n"
            "- {name: A Group, website: 'https://group.example'}\nlicense: [MIT, Apache-2.0]\n"
        )
    )
    entities = Entities()
    person, group = authors_of(entities, cited)
    assert (person["name"], person["affiliation"]["name"]) == ("Ada L", "An Institute")
    assert (group.id, group.type) == ("https://group.example", "Organization")
    assert publisher_of([person, group]) == group
    assert publisher_of([person]) == person["affiliation"]
    licenses = license_of(entities, cited)
    assert isinstance(licenses, list)
    assert [one.id for one in licenses] == [
        "https://spdx.org/licenses/MIT", "https://spdx.org/licenses/Apache-2.0",
    ]  # fmt: skip


def test_without_a_citation_nothing_is_made_up():
    cited = read_citation(contents(None))
    assert cited == {}
    assert authors_of(Entities(), cited) == []
    assert publisher_of([]) is None
    stated: Any = license_of(Entities(), cited)
    assert stated["name"] == "No license was given"


@pytest.mark.parametrize("text", ["{", "- a", "authors: Ada", "authors: [Ada]"])
def test_a_citation_of_another_form_is_named(text):
    with pytest.raises(ConfigError, match=r"^CITATION.cff .*; fix or delete the file$"):
        read_citation(contents(text))


def test_the_table_outside_the_project_gets_a_place_in_the_crate(tmp_path, monkeypatch):
    from shardline.provenance.crate.contents import _project_files

    monkeypatch.chdir(tmp_path)
    table = tmp_path / "elsewhere.tsv"
    table.write_text("name\n")
    project: Any = SimpleNamespace(
        workdir=tmp_path, table=str(table), lock_file=Path("requirements.lock")
    )
    names = [name for name, _ in _project_files(project, Path("none.yaml"))]
    assert "config/elsewhere.tsv" in names
    assert not [name for name in names if name.startswith(("/", ".."))]
