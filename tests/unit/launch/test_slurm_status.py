"""What Snakemake's Slurm plugin is told of its jobs, by programs that print what Slurm's do."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from shardline.launch.slurm.sacct import (
    explain,
    plain_state,
    read_reason,
    real_sacct,
    remember,
    stand_before_sacct,
    states_of_squeue,
    write_reason,
)
from tests.support.workspace import REPOSITORY, write_program

OURS = REPOSITORY / "profiles" / "slurm" / "bin"
NOW = datetime(2026, 1, 1, 12, 0, 0)
STATUS = ["-X", "--parsable2", "--noheader", "--format=JobIdRaw,State", "--name", "uuid"]
NO_DATABASE = 'echo "Slurm accounting storage is disabled" >&2; exit 1'
CONFIG = 'echo "AccountingStorageType = accounting_storage/{}"'


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("PREEMPTED", "FAILED"),
        ("NODE_FAIL", "FAILED"),
    ],
)
def test_states_are_words_that_the_plugin_knows(state: str, told: str):
    assert plain_state(state) == told


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ("2026-01-01T11:59:55", "COMPLETING"),  # it may be queued again
        ("N/A", "COMPLETING"),
        ("2026-01-01T11:59:00", "FAILED"),
    ],
)
def test_a_job_that_slurm_ended_has_failed_when_it_does_not_return(
    state: str, ended: str, told: str
):
    assert states_of_squeue(f"7|{state}|{ended}\n", NOW) == {"7": told}


def test_jobs_that_are_not_listed_any_more_are_remembered(tmp_path: Path):
    file = tmp_path / "seen" / "uuid"
    assert remember(file, ["1", "2", "3_1", "3_[2-4]"]) == set()
    assert remember(file, ["2", "4"]) == {"1", "3_1"}
    assert remember(file, []) == {"1", "2", "3_1", "4"}
    assert file.read_text().split() == ["1", "2", "3_1", "4"]


def test_a_failure_is_explained_with_its_remedy():
    fields = {"JobState": "TIMEOUT", "TimeLimit": "01:00:00"}
    told = explain(fields)
    assert told.startswith("ran longer than its limit of 01:00:00, raise runtime in the profile; ")
    assert explain({"JobState": "BOOT_FAIL", "Reason": "x"}).startswith("BOOT_FAIL, x; run ")
    assert explain({"JobState": "FAILED"}).startswith("ended with exit code ExitCode unknown")


def test_the_next_sacct_in_path_is_the_real_one(program: Callable[[str, str, str], Path]):
    first, copy = program("first", "sacct", ""), program("copy", "sacct", "")
    program("real", "sacct", "")
    folders = [str(path.parent) for path in (first, copy, copy.parents[1] / "real" / "sacct")]
    path = os.pathsep.join(folders)
    assert real_sacct(str(first), path) == str(copy)
    assert real_sacct(str(copy), path) == f"{folders[2]}/sacct"
    assert real_sacct(f"{folders[2]}/sacct", path) is None


def test_path_is_changed_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("SHARDLINE_PYTHON", "")
    for _ in range(2):
        stand_before_sacct(Path("/ours"))
    assert os.environ["PATH"] == f"/ours{os.pathsep}/usr/bin"
    assert os.environ["SHARDLINE_PYTHON"] == sys.executable


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """Write a shell script as a program into a folder of the test."""

    def write(folder: str, name: str, script: str) -> Path:
        return write_program(tmp_path / folder / name, script)

    return write


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Ask our sacct, before the programs in the folder `bin`."""

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(OURS), str(tmp_path / "bin"), "/usr/bin", "/bin"])
        return subprocess.run(
            ["sacct", *words],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "SHARDLINE_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    return ask


def test_the_answer_is_squeues_where_it_knows_the_job(program, ask):
    program("bin", "squeue", "printf '1|RUNNING|N/A\\n2|COMPLETED|2026-01-01T00:00:00\\n'")
    program("bin", "sacct", "printf '1|NODE_FAIL\\n3|CANCELLED by 0\\n'")
    answer = ask(*STATUS)
    assert answer.returncode == 0
    assert sorted(answer.stdout.split()) == ["1|RUNNING", "2|COMPLETED", "3|CANCELLED"]


@pytest.mark.parametrize(
    ("sacct", "accounting", "told"),
    [
        ("printf '1|COMPLETED\\n'", "slurmdbd", ["1|COMPLETED"]),
        ("true", "slurmdbd", ["1|UNKNOWN"]),
        (NO_DATABASE, "none", ["1|UNKNOWN"]),
        ("exit 1", "slurmdbd", []),  # the database is away: no answer, so the plugin asks again
    ],
)
def test_a_job_that_squeue_has_forgotten(program, ask, sacct, accounting, told):
    program("bin", "sacct", sacct)
    program("bin", "scontrol", CONFIG.format(accounting))
    program("bin", "squeue", "echo '1|RUNNING|N/A'")
    ask(*STATUS)
    program("bin", "squeue", "true")
    answer = ask(*STATUS)
    assert (answer.returncode, answer.stdout.split()) == (0, told)


def test_an_outage_is_waited_out(program, ask):
    program("bin", "sacct", NO_DATABASE)
    program("bin", "squeue", "[ -e asked ] && echo '1|RUNNING|N/A' || { touch asked; exit 1; }")
    assert ask(*STATUS).stdout == "1|RUNNING\n"


def test_the_reason_is_told_once(program, ask):
    program("bin", "scontrol", "echo 'JobId=7 JobState=PREEMPTED Reason=None'")
    program("bin", "sacct", "echo not asked")
    told = [ask("-j", f"7.{step}", "--format=Reason", "--noheader") for step in range(2)]
    assert told[0].stdout.startswith("preempted by a job of higher priority")
    assert (told[1].returncode, told[1].stdout) == (0, "")


def test_every_other_question_goes_to_the_real_sacct(program, ask):
    program("bin", "sacct", 'echo "$@"; exit 3')
    program("bin", "scontrol", "exit 1")
    for words in (["--name=uuid", "a b"], ["-j", "7.0", "--format=Reason"]):
        answer = ask(*words)
        assert (answer.returncode, answer.stdout) == (3, " ".join(words) + "\n")


def test_without_a_real_sacct_there_is_no_such_program(tmp_path: Path):
    # this computer may have one in /usr/bin
    words = [str(OURS / "sacct"), "--version"]
    env = {"PATH": str(tmp_path), "SHARDLINE_PYTHON": sys.executable}
    answer = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=50)
    assert (answer.returncode, answer.stdout, answer.stderr) == (127, "", "")


def test_a_failed_job_is_explained_by_what_it_told_itself(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert read_reason("7", "2026-01-01T12:00:00") == ""
    write_reason("rank 1 on n2: optim.lr is too high")
    told = read_reason("7", "2026-01-01T12:00:00")
    failed = {"JobState": "FAILED", "ExitCode": "1:0"}
    assert explain(failed, told) == "rank 1 on n2: optim.lr is too high"
    assert explain({**failed, "JobState": "CANCELLED"}, told).startswith("cancelled by")
    assert read_reason("7", "2999-01-01T12:00:00") == "", "another cluster's job of this number"
    assert read_reason("7", "Unknown") == ""


def test_outside_slurm_nothing_is_left(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    write_reason("a reason")
    assert not list(tmp_path.iterdir())
