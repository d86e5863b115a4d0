"""The launcher as a child: its end is certain, and the first rank's own error is what one sees."""

import os
import platform
import re
import signal
import subprocess
import sys

import psutil
import pytest

from shardline.launch.commands import LaunchPlan, launch_command
from shardline.supervision.failure_records import killed_rank
from shardline.supervision.supervisor import RankError, run_ranks
from tests.support.processes import rank_environment, wait_until

# What a rank does, without torch: rank 1 fails, rank 0 fails because of it.
FAILING = """
import os, sys, time, pathlib
from shardline.supervision.failure_records import report_failure
work = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    report_failure(work, "rank 1 is the culprit", rank=1, log=work / "rank-1.log")
    while not (work / "errors" / "rank-0.json").exists():  # the launcher would end rank 0 before it reports
        time.sleep(0.01)
    sys.exit(3)
while not (work / "errors" / "rank-1.json").exists():
    time.sleep(0.01)
report_failure(work, "connection closed by peer", rank=0, log=None)
sys.exit(1)
"""
# Rank 1 is killed and says nothing; rank 0 fails because of it, and says so.
KILLED = """
import os, signal, sys, pathlib
from shardline.supervision.failure_records import report_failure
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
report_failure(pathlib.Path(sys.argv[1]), "connection closed by peer", rank=0, log=None)
signal.pause()
"""
# A signal ends rank 1, and its watchdog tells what it knows.
WATCHED = """
import os, signal, sys, pathlib
from shardline.supervision.failure_records import report_failure
if os.environ["RANK"] == "1":
    report_failure(pathlib.Path(sys.argv[1]), "rank 1: its watchdog's words", rank=1, log=None, code=CODE)
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""
WAITING = """
import pathlib, sys, os, time
from shardline.core.process import die_with_parent
die_with_parent()
(pathlib.Path(sys.argv[1]) / ("pid-" + os.environ["RANK"])).write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def command(tmp_path):
    """Return a function that makes the command line of a two-rank program."""

    def make(code):
        program = tmp_path / "program.py"
        program.write_text(code)
        plan = LaunchPlan(run_id="test", nodes=1, devices=2)
        return launch_command("torchrun", [str(program), str(tmp_path)], plan)

    return make


def run_two_ranks(command, folder):
    env, log = rank_environment(), folder / "log"
    run_ranks(command, env=env, log=log, work=folder, title="t", ranks=2)


def test_the_first_ranks_own_error_is_what_one_sees(command, tmp_path):
    culprit = (
        f"rank 1 on {platform.node()}, its log is {tmp_path}/rank-1.log: rank 1 is the culprit"
    )
    with pytest.raises(RankError, match=f"^{re.escape(culprit)}$"):
        run_two_ranks(command(FAILING), tmp_path)
    assert "connection closed by peer" in (tmp_path / "log").read_text()


def test_a_rank_that_was_killed_is_named_though_another_one_speaks(command, tmp_path):
    named = rf"rank 1 on \S+ was killed by a signal \(SIGKILL\).*; see {tmp_path}/log$"
    with pytest.raises(RankError, match=named):
        run_two_ranks(command(KILLED), tmp_path)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (137, "^rank 1: its watchdog's words$"),
        (128, r"^rank 1 on \S+ was killed by a signal \(SIGKILL"),
    ],
    ids=["known", "unknown"],
)
def test_a_watchdog_that_knows_the_signal_goes_before_the_launcher(command, tmp_path, code, told):
    with pytest.raises(RankError, match=told) as raised:
        run_two_ranks(command(WATCHED.replace("CODE", str(code))), tmp_path)
    assert raised.value.is_killed


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (
            "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 1\n",
            "rank 1 on n2 was killed by a signal (Killed)",
        ),
        ("srun: error: n1: task 0: Exited with exit code 4\nsrun: error: n2: task 1: Killed\n", None),
        ("srun: error: n1: tasks 0-1: Terminated\n", None),
        (
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 11 (Segmentation fault).\n",
            "rank 1 on n2 was killed by a signal (SIGSEGV)",
        ),
        ("step 7\n", None),
    ],
)  # fmt: skip
def test_what_launchers_tell_of_a_killed_rank(output, named):
    told = killed_rank(output)
    assert told.startswith(named) if named else told is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_job(command, tmp_path, number):
    code = (
        "import sys; from pathlib import Path; from shardline.supervision.supervisor import run_ranks;"
        "work = Path(sys.argv[1]);"
        "run_ranks(sys.argv[2:], env=dict(__import__('os').environ), log=work / 'log', work=work, title='t', ranks=2)"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *command(WAITING)],
        env=rank_environment(),
        text=True,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)), job)
    started = psutil.Process(job.pid).children(recursive=True)
    assert len(started) == 3
    os.kill(job.pid, number)
    job.communicate(timeout=300)
    _, alive = psutil.wait_procs(started, timeout=120)
    assert not alive


# A rank that heeds the job's wish, as the watchdogs bring it; and one that is too slow to.
HEEDING = """
import json, sys, time, pathlib
from shardline.supervision.failure_records import report_failure
work = pathlib.Path(sys.argv[1])
(work / "started").touch()
while not (work / "stop.json").exists():
    time.sleep(0.01)
if sys.argv[2] == "slow":
    time.sleep(600)
reason = json.loads((work / "stop.json").read_text())["reason"]
report_failure(work, "saved", rank=0, log=None, kind="stopped", code=75, step=7, stop=reason)
sys.exit(75)
"""
JOB = """
import os, sys
from pathlib import Path
from shardline.supervision.supervisor import run_ranks
work, grace_s = Path(sys.argv[1]), float(sys.argv[2])
try:
    run_ranks(sys.argv[3:], env=dict(os.environ), log=work / "log", work=work, title="t", ranks=1, grace_s=grace_s)
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("numbers", "pace", "told"),
    [
        ([signal.SIGTERM], "quick", r"Stopped asked to end \(SIGTERM\): saved at step 7; the same"),
        ([signal.SIGUSR1], "quick", r"Stopped asked to stop \(SIGUSR1\): saved at step 7"),
        ([signal.SIGINT], "quick", "Stopped interrupted: saved at step 7"),
        ([signal.SIGTERM], "slow", r"Stopped .* before they saved; raise runtime\.stop_grace_s"),
        ([signal.SIGINT, signal.SIGINT], "slow", "KeyboardInterrupt"),
    ],
)
def test_a_job_that_is_told_to_stop_has_its_ranks_save_first(tmp_path, numbers, pace, told):
    (tmp_path / "program.py").write_text(HEEDING)
    rank = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), pace]
    grace_s = "2" if told.startswith("Stopped ") and pace == "slow" else "600"
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path), grace_s, *rank],
        text=True, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    wait_until((tmp_path / "started").exists, job)
    job.send_signal(numbers[0])
    for number in numbers[1:]:
        wait_until((tmp_path / "stop.json").exists, job)
        job.send_signal(number)
    assert re.match(told, job.communicate(timeout=120)[0])
    assert not (tmp_path / "stop.json").exists(), "ranks that are started next are not asked"


HOLDING = """
import sys
from pathlib import Path
from shardline.supervision.attempt_log import only_one
with only_one(Path(sys.argv[1]), "mlp-0123456789ab") as has_waited:
    print("waited" if has_waited else "first", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["orderly", "killed"])
def test_a_second_job_waits_for_the_first_and_says_for_whom(tmp_path, end):
    def start():
        return subprocess.Popen(
            [sys.executable, "-c", HOLDING, str(tmp_path)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    first, second = start(), None
    try:
        assert first.stdout.readline() == "first\n"
        second = start()
        place = rf"process {first.pid} on {re.escape(platform.node())}, since \S+Z"
        told = rf"mlp-0123456789ab is being trained by another job \({place}\); waiting until it exits\n"
        assert re.search(told, second.stderr.readline())
        first.stdin.close() if end == "orderly" else first.kill()
        assert second.stdout.readline() == "waited\n"
        second.stdin.close()
        assert second.wait(60) == 0
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
