"""`shardline drill` under the local profile: the real command, real faults, a true verdict."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.commit import commit_of
from tests.support.rotation import rotating
from tests.support.workspace import REPOSITORY, SHARDLINE, TINY_CONFIG

SAME = {"weights": True, "optimizer": True, "ledger": True}


# Forked ranks in every second commit, started ones in the others.
IS_WARM = int((commit_of(REPOSITORY) or "0")[-1], 16) % 2 == 0


@pytest.fixture
def project(tiny):
    row = {"name": "mine", "dataset": "table", "model": "mlp"}
    return tiny(row, runtime={**TINY_CONFIG.get("runtime", {}), "warm_ranks": IS_WARM})


def command(*arguments: str) -> list[str]:
    profile = REPOSITORY / "profiles" / "local"
    return [*SHARDLINE, "drill", *arguments, "--profile", str(profile), "--timeout-s", "500"]


def drill(project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=project.path, text=True, capture_output=True, check=False
    )


def survived(done: subprocess.CompletedProcess[str]) -> list[dict]:
    """Return the outcomes of a drill that was survived."""
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert [one["verdict"] for one in outcomes] == ["survived"] * len(outcomes)
    assert all(one["compared"] == SAME for one in outcomes)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("kill-rank", 1),
        *rotating(
            ("disk-full", 2),
            ("stop-rank", 1),
            ("preempt", 1),
            ("timeout", 1),
            ("kill-controller", 2),
        ),
    ],
)
def test_a_fault_is_survived_and_its_cost_is_reported(project, name, commands):
    (one,) = survived(drill(project, name, "--json"))
    (injected,) = one["interruptions"]
    assert (injected["ranks"], injected["place"]) == (2, "mid-epoch")
    assert one["attempts"] >= 2
    assert one["commands"] == commands, "the profile retries, but nobody else frees a disk"
    # the last of two saves may not be on the disk yet
    assert 0 <= one["steps_lost"] <= 2 * 3, "no more than what lies between saves"
    assert one["seconds_lost"] >= 0
    assert sorted(path.name for path in project.path.glob("drills/*")) == ["lock"]
    assert not list(project.path.glob("results/runs/*")), "the user's own runs are not touched"


@pytest.mark.rotating
@pytest.mark.slow
def test_resume_writes_the_certificate_and_prints_a_table(project):
    done = drill(project, "resume", "--interruptions", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {line.split("  ")[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert shown["resume"] == ["1", "rank", "2", "ranks"]
    assert shown["verdict"] == ["survived", "survived"]
    document = json.loads(project.the("results/certificates/resume-*.json").read_text())
    assert document["verdict"] == "survived"
    assert document["compared"] == SAME
    assert document["identity"]["world_sizes"] == [1, 2]
    assert len(document["interruptions"]) == 2


@pytest.mark.slow
def test_ctrl_c_leaves_neither_files_nor_processes(project):
    told = project.path / "told"
    with told.open("w") as file:
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *command("kill-rank")],
            cwd=project.path, stdout=file, stderr=file,
        )  # fmt: skip
    running = Path(project.path, "drills", "kill-rank-1", "unbroken", "snakemake.log")
    end = time.monotonic() + 600
    while not (running.exists() and "Training" in running.read_text()):
        assert process.poll() is None, told.read_text()
        assert time.monotonic() < end, told.read_text()
        time.sleep(0.05)
    tree = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) != 0
    psutil.wait_procs(tree, timeout=60)
    assert not [one for one in tree if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert sorted(path.name for path in project.path.glob("drills/*")) == ["lock"]
