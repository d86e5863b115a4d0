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
    assert "in progress" in result.stdout
    assert result.stderr == ""
    assert "SHARDLINE_STORE" not in os.environ, "the next command has its own"


def test_a_profile_not_passed_is_named(elsewhere: Path):
    result = shardline("ls")
    assert "in progress" not in result.stdout
    assert result.stderr == (
        f"profiles/mine/profile.yaml names the store {elsewhere}, and this command looks into store; for the runs "
        "of that profile, pass it: shardline --profile profiles/mine ...\n"
    )


def test_the_variable_goes_before_every_profile(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHARDLINE_STORE", "store")
    for words in (["ls"], ["--profile", "profiles/mine", "ls"]):
        result = shardline(*words)
        assert ("in progress" in result.stdout, result.stderr) == (False, "")


def test_a_profile_that_is_not_there_is_an_error(fake: FakeProject):
    result = shardline("--profile", "profiles/none", "ls")
    assert result.exit_code == 2
    assert result.stderr.startswith("--profile profiles/none is not there; give a folder")
