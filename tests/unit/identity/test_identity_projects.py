"""Golden identities of ten small projects: one that changes without a bump makes results stale.

Each folder of tests/golden/identities is a project with its own `identities.json`. `--regen`
writes what is missing, and what a bump of a result version explains; to give identities
another form, which makes every result of every user stale, delete the files first.

What differs between machines and has golden files of its own is left out: the minor version of
Python, the text of the report's page, and the digests of the users' code (`user_code.json`).
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from shardline.config import documents
from shardline.config.causes import find_causes
from shardline.config.checked_sources import SHIPPED_SOURCES
from shardline.config.load import load_project
from shardline.config.resolved import KEYWORD, settings_of
from shardline.config.settings import Key, Settings, keys_of, schema_of
from shardline.config.settings.config import StudySettings
from shardline.core.canonical import short_digest
from shardline.identity import CodeIndex, Lock
from shardline.identity.user_code import UserCode

GOLDEN = Path(__file__).parents[2] / "golden" / "identities"
PROJECTS = sorted(path.parent.name for path in GOLDEN.glob("*/config.yaml"))
Identities = dict[str, dict[str, Any]]


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what differs between machines."""
    environment, reach = Lock.environment, documents.reach

    def named(index: CodeIndex, entry: str, whole: str) -> UserCode:
        return replace(reach(index, entry, whole), digest=f"code of {entry}")

    monkeypatch.setattr(documents, "reach", named)
    monkeypatch.setattr(documents, "_page_files", dict)
    monkeypatch.setattr(
        Lock, "environment", lambda self, imports: {**environment(self, imports), "python": "3.x"}
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)


def identities(folder: Path) -> Identities:
    """Return digest and document of every stage of a project."""
    project = load_project(workdir=folder, config_file=Path("config.yaml"))
    found = {f"dataset {one.name}": one.document for one in project.datasets.values()}
    for run in project.runs.values():
        found |= {
            f"train {run.name}": run.document,
            f"evaluate {run.name}": run.evaluation_document,
        }
    found["report"] = project.report_document
    named = {stage: {"digest": short_digest(one), "document": one} for stage, one in found.items()}
    return dict(json.loads(json.dumps(named)))


def unexplained(old: Identities, new: Identities) -> list[str]:
    """Return what differs, but for bumps of result versions and what follows from them."""
    nothing = {"document": {"stage": "missing"}}
    return [
        f"{stage}: {cause.text}"
        for stage in sorted(old.keys() | new.keys())
        for before, after in [(known.get(stage, nothing)["document"] for known in (old, new))]
        if before.get("versions") == after.get("versions")
        for cause in find_causes(_by_itself(before), _by_itself(after))
    ]


def _by_itself(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the identities that it is made from, by which a report lists names."""
    settings = document.get("settings", {})
    names = {kind: sorted(of.values()) for kind, of in settings.get("names", {}).items()}
    return {**document, "inputs": {}, "settings": {**settings, "names": names}}


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("name", PROJECTS)
def test_identities_of_earlier_versions_are_kept(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    shutil.copy(GOLDEN / "requirements.lock", tmp_path)
    found, path = identities(tmp_path / name), GOLDEN / name / "identities.json"
    if request.config.getoption("--regen") and (
        not path.exists() or not unexplained(json.loads(path.read_text()), found)
    ):
        path.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(path.read_text())
    assert unexplained(expected, found) == []
    assert found == expected


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, []),
        ({"versions": {"training": 2}, "environment": {"packages": {"torch": "2"}}}, []),
        ({"inputs": {"dataset": "another"}}, []),  # whose own document tells why
        ({"settings": {"seed": 1, "new": 0}}, ["train a: new unset -> 0"]),
        ({"environment": {"packages": {"torch": "2"}}}, ["train a: torch 2 newly needed"]),
        ({"code": {"model": "x"}}, ["train a: model unset -> own class"]),
        ({"more": 1}, ["train a: more unset -> 1"]),
    ],
)
def test_only_a_bump_explains_another_identity(changed: dict[str, Any], told: list[str]) -> None:
    document = {
        "stage": "train",
        "settings": {"seed": 1},
        "inputs": {"dataset": "one"},
        "versions": {"training": 1},
        "code": {},
        "environment": {"packages": {}},
    }
    pair = ({"train a": {"document": one}} for one in (document, {**document, **changed}))
    assert unexplained(*pair) == told


def test_there_are_ten() -> None:
    assert len(PROJECTS) == 10


# --- settings -----------------------------------------------------------------------------------

KEYS = GOLDEN / "settings.json"  # those that the first identities hold


def dotted_keys(table: type[Settings], prefix: str = "") -> dict[str, Key]:
    """Return each setting of a table, by dotted key."""
    found: dict[str, Key] = {}
    for key, known in keys_of(table).items():
        tables = known.schema.tables
        if not tables:
            found[f"{prefix}{key}"] = known
        for below in tables:
            found |= dotted_keys(below, f"{prefix}{key}.")
    return found


def present_keys() -> dict[str, dict[str, Key]]:
    dataset = dotted_keys(settings_of("dataset"))
    source = schema_of(settings_of("dataset")).key("source")
    return {
        "run": dotted_keys(settings_of("train")),
        "dataset": {k: v for k, v in dataset.items() if not k.startswith("source.")},
        "study": dotted_keys(StudySettings),
        **{
            f"source {kind}": keys_of(source.table_of({"type": kind}))
            for kind in (*SHIPPED_SOURCES, "own:Class")
        },
    }


def test_newer_settings_say_what_reproduces_the_results_of_before(
    request: pytest.FixtureRequest,
) -> None:
    """A source that is newer as a whole has no results of before."""
    present = present_keys()
    if request.config.getoption("--regen") and not KEYS.exists():
        listed = {where: sorted(keys) for where, keys in present.items()}
        KEYS.write_text(json.dumps(listed, indent=1) + "\n")
    first = json.loads(KEYS.read_text())
    for where, keys in present.items():
        for key, known in keys.items() if where in first else ():
            has_legacy_value = KEYWORD in known.schema.limits
            if key in first[where]:
                assert not has_legacy_value, f"{where}: {key} enters its identities always"
            else:
                assert has_legacy_value or known.default is UNSET, (
                    f"{where}: {key} has no `legacy_value`"
                )
