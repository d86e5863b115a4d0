"""A store that a profile names: looked into with --profile, named where the profile is not passed."""

import os
from pathlib import Path

import pytest

from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject


@pytest.fixture
def elsewhere(fake: FakeProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of the profile `mine`, in which a run has begun."""
    store = tmp_path_factory.mktemp("scratch")
    fake.workspace.write(
        "profiles/mine/profile.yaml", f"executor: slurm\nconfig:\n  runtime:\n    store: {store}\n"
    )
    fake.begin_training(fake.run("net"), steps=1)
    Path("store/work").rename(store / "work")
    return store


def test_a_profile_passed_says_where_the_store_is(elsewhere: Path):
    result = shardline("--profile", "profiles/mine", "ls")
    assert "stopped" in result.stdout
    assert result.stderr == ""
    assert "SHARDLINE_STORE" not in os.environ, "the next command has its own"


def test_a_profile_behind_check_or_why_has_the_same_meaning(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    looked: list[Path] = []
    monkeypatch.setattr(
        "shardline.cli.check.check_runs", lambda project, *_: looked.append(project.store) or []
    )
    for words in (["why", "net"], ["check", "net"]):
        before = shardline("--profile", "profiles/mine", *words)
        behind = shardline(*words, "--profile", "profiles/mine")
        assert (behind.stdout, behind.stderr) == (before.stdout, before.stderr)
        assert str(elsewhere) not in behind.stderr, "the profile needs no hint"
        assert str(elsewhere) in shardline(*words).stderr
    assert looked == [elsewhere, elsewhere, Path("store").absolute()]
    assert "is not finished" in shardline("why", "net", "--profile", "profiles/mine").stdout
    missing = shardline("why", "net", "--profile", "profiles/none")
    assert (missing.exit_code, missing.stderr.split(";")[0]) == (
        2,
        "--profile profiles/none does not exist",
    )


def test_a_profile_not_passed_is_named(elsewhere: Path):
    result = shardline("ls")
    assert "stopped" not in result.stdout
    assert result.stderr == (
        f"profiles/mine/profile.yaml sets runtime.store to {elsewhere}, but this command reads store; to see the "
        "runs of that profile, use shardline --profile profiles/mine ...\n"
    )


def test_the_variable_goes_before_every_profile(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHARDLINE_STORE", "store")
    for words in (["ls"], ["--profile", "profiles/mine", "ls"]):
        result = shardline(*words)
        assert ("stopped" in result.stdout, result.stderr) == (False, "")


def test_a_profile_that_is_not_there_is_an_error(fake: FakeProject):
    result = shardline("--profile", "profiles/none", "ls")
    assert result.exit_code == 2
    assert result.stderr.startswith("--profile profiles/none does not exist; name a folder")
