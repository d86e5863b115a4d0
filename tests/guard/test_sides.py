"""How an earlier side is made and kept, with a made `_make`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard import sides
from tests.guard.bumps import run_git
from tests.guard.values import Result
from tests.support.workspace import REPOSITORY

MADE = Result(stage="data", case="a", identity={}, inputs=[], values={"rows": 1})


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of Shardline that made a project."""
    found: list[Path] = []

    def make(project: Path, root: Path, programs: Path, place: Path) -> dict[str, Result]:
        assert (root / "src/shardline/__init__.py").exists()
        found.append(root)
        return {MADE.key: MADE}

    monkeypatch.setattr(sides, "_make", make)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def test_an_earlier_side_is_made_once_in_a_worktree_that_is_removed(
    made: list[Path], tmp_path: Path
) -> None:
    project = Path(shutil.copytree(sides.PROJECTS[0], tmp_path / "format-1" / "project"))
    head = run_git(REPOSITORY, "rev-parse", "HEAD").strip()
    for _ in range(2):
        assert sides.earlier(project, head) == {MADE.key: MADE}
    (tree,) = made
    assert tree != REPOSITORY
    assert not tree.exists()
    assert str(tree) not in run_git(REPOSITORY, "worktree", "list")
    (project / "config/runs.tsv").write_text("other\n")
    sides.earlier(project, head)
    assert len(made) == 2


def test_an_environment_of_its_own_is_made_once_where_locks_differ(
    made: list[Path], tmp_path: Path
) -> None:
    lock = tmp_path / sides.LOCK
    lock.write_bytes((REPOSITORY / sides.LOCK).read_bytes())
    assert sides.environment(tmp_path) == Path(sys.executable).parent
    lock.write_text("numpy==1\n")
    (tmp_path / "Makefile").write_text(
        "env:\n\tmkdir -p $(VENV)/bin; echo $(PYTHON) >> $(VENV)/bin/python\n"
        "\t[ ! -e fail ] && touch $(VENV)/.installed\n"
    )
    (tmp_path / "fail").touch()
    with pytest.raises(subprocess.CalledProcessError):
        sides.environment(tmp_path)
    (tmp_path / "fail").unlink()
    for _ in range(2):
        programs = sides.environment(tmp_path)
    assert programs.is_relative_to(tmp_path / "cache")
    assert (programs / "python").read_text().split() == 2 * [sys.executable]


def test_all_histories_but_the_class_that_users_derive_from_have_a_case() -> None:
    from shardline.identity.versions import HISTORIES

    cases = [sides.versions_of_project(project) for project in sides.PROJECTS]
    found = {name for results in cases for versions in results.values() for name in versions}
    # predictions are no part of a report, by whose figures both sides are compared; the batches of
    # shardline_io are compared with those of the present streams, which the guard holds
    assert found == set(HISTORIES) - {"classifier", "prediction", "io"}
