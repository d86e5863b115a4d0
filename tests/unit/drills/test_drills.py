"""Fault-injection tests without a training: what is rejected, what is planned, and the outcome."""

import subprocess
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from msgspec import structs

from shardline.drills.faults import FAULTS, SmallDisk
from shardline.drills.outcome import cost, why_not_survived
from shardline.drills.profile_command import read_profile
from shardline.drills.tiny import make_tiny
from shardline.errors import ConfigError, LaunchError
from shardline.records.attempts import Attempt
from tests.support.command_line import shardline
from tests.support.workspace import REPOSITORY

LOCAL = REPOSITORY / "profiles" / "local"


def write_profile(folder: Path, **keys) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "profile.yaml").write_text(yaml.safe_dump(keys))
    return str(folder)


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (2, 8), (5, 7)])
def test_the_tiny_project_can_be_trained_at_every_size(tmp_path, size):
    tiny = make_tiny(tmp_path, tmp_path / "store", [(1, 1), size], epochs=4, runtime={}, also={})
    geometry = {(run.settings.nodes, run.settings.devices) for run in tiny.runs}
    assert geometry == {(1, 1), size}


def test_the_broken_training_is_of_the_same_identity(tmp_path):
    tiny = make_tiny(
        tmp_path / "unbroken", tmp_path / "unbroken" / "store", [(1, 2)], epochs=4, runtime={}, also={}
    )  # fmt: skip
    twin = tiny.twin("broken", {"rendezvous_timeout_s": 7})
    assert [run.id for run in twin.runs] == [run.id for run in tiny.runs]
    assert twin.store != tiny.store


def test_a_second_drill_in_a_folder_is_refused(tiny, monkeypatch):
    workspace = tiny({"name": "a", "dataset": "table", "model": "mlp"})
    monkeypatch.chdir(workspace.path)
    Path("drills").mkdir()
    with FileLock("drills/lock"):
        result = shardline("drill", "kill-rank", "--profile", str(LOCAL))
    assert result.exit_code == 4
    assert "another `shardline drill` is running" in result.stderr


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"executor": "slurm"},
            "executor=slurm, on which the fault disk-full cannot be injected; expected executor local",
        ),
        ({"default-storage-provider": "azure"}, "default-storage-provider=azure"),
    ],
)
def test_a_profile_without_fault_injection_is_rejected_by_name(tiny, monkeypatch, keys, message):
    workspace = tiny({"name": "a", "dataset": "table", "model": "mlp"})
    monkeypatch.chdir(workspace.path)
    profile = write_profile(workspace.path / "profile", **keys)
    result = shardline("drill", "disk-full", "--profile", profile)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("drills").exists()


def test_a_profile_is_found_as_snakemake_finds_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_profile(tmp_path / "mine", executor="slurm", config={"runtime": {"store": "/scratch"}})
    found = read_profile("mine")
    assert (found.executor, found.word) == ("slurm", str(tmp_path / "mine"))
    assert found.runtime == {"store": "/scratch"}
    with pytest.raises(ConfigError, match="--profile nowhere does not exist"):
        read_profile("nowhere")


def test_a_machine_without_namespaces_says_what_disk_full_needs(tmp_path, monkeypatch):
    (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare: not permitted\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(LaunchError, match="not permitted.*expected user and mount namespaces"):
        SmallDisk(tmp_path / "disk").__enter__()


def test_a_small_disk_is_seen_inside_alone_and_gone_at_the_end(tmp_path):
    folder = tmp_path / "disk"
    with SmallDisk(folder) as disk:
        subprocess.run([*disk.inside, "touch", str(folder / "file")], check=True)
        assert disk.path(folder / "file").exists()
        assert not (folder / "file").exists()
    assert not list(folder.iterdir())


def test_the_cost_is_what_the_attempts_recorded():
    dead = Attempt(host="n1", started="2026-01-31T10:00:00Z")  # before its first step
    first = structs.replace(dead, steps_done=16, steps_lost=1, lost_s=2.54)
    last = structs.replace(dead, steps_done=25, steps_lost=0, lost_s=0.0)
    found = cost([first, dead, last])
    assert found == {"steps_done": 41, "steps_lost": 1, "seconds_lost": 2.5, "attempts": 3}


@pytest.mark.parametrize(
    ("compared", "injected", "failure", "reason"),
    [
        ({"weights": True, "ledger": True}, 1, "", None),
        ({"weights": True, "ledger": False}, 1, "", "ledger"),
        ({"weights": True, "ledger": True}, 0, "", "1 of 1 faults were not injected"),
        ({"weights": False, "ledger": False}, 1, "the disk is full", "the disk is full"),
    ],
)
def test_a_verdict_is_no_better_than_what_was_shown(compared, injected, failure, reason):
    reasons = why_not_survived(compared, planned=1, injected=injected, failure=failure)
    assert [reason in one for one in reasons] == ([True] if reason else [])


def test_every_fault_is_described():
    text = (REPOSITORY / "docs/how-to/test-your-cluster.md").read_text()
    help_text = shardline("drill", "--help").stdout
    for name in FAULTS:
        assert f"`{name}`" in text
        assert name in help_text
