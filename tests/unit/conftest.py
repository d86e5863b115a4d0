"""A project whose results were never computed, and a project of every kind of run."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from shardline.config import documents
from shardline.identity import code_index
from tests.support.fake_project import FakeProject
from tests.support.imported import Interpreter
from tests.support.mutated_project import Place
from tests.support.workspace import Workspace

_parse_once = cache(
    code_index.parse_module
)  # a pure function, and four fifths of loading a project


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Leave no log of a job to the next test: `common.job` sets one for its whole process."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.FileHandler:  # and not one of pytest's own
            logging.root.removeHandler(handler)
            handler.close()


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Leave no variable to the next test: trainings set some for their whole process, as Lightning does."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def fake(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    monkeypatch.chdir(workspace.path)
    for name in ("SHARDLINE_STORE", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(code_index, "parse_module", _parse_once)
    return FakeProject(workspace)


# --- a project of every kind of run, for the tests that change one thing ---------------------------


@pytest.fixture(scope="module")
def template_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("template"))
    place.fill()
    return place


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place], Place]:
    """Have the present process take the library and the template of a place."""

    def make(place: Place) -> Place:
        monkeypatch.setattr(code_index, "LIBRARY", place.library)
        monkeypatch.setattr(code_index, "parse_module", _parse_once)
        monkeypatch.setattr(documents, "report_folder", lambda: place.path / "report")
        return place

    return make


@pytest.fixture
def place(template_place: Place, tmp_path: Path, use: Callable[[Place], Place]) -> Place:
    """A project that a test may change."""
    shutil.copytree(template_place.path, tmp_path, dirs_exist_ok=True)
    return use(Place(tmp_path))


@pytest.fixture
def shared(template_place: Place, use: Callable[[Place], Place]) -> Iterator[Place]:
    """A project that a test changes and mends again; cheaper where it does so many times."""
    before = {path: path.read_bytes() for path in template_place.path.rglob("*") if path.is_file()}
    yield use(template_place)
    for path, content in before.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


# --- code that is truly run, for the campaigns of identities ---------------------------------------


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a case makes and removes a dozen folders."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    started = Interpreter()
    yield started
    started.close()
