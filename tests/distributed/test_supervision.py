"""The launcher as a child: its end is certain, and the first rank's own error is what one sees."""

import os
import platform
import re
import signal
import subprocess
import sys

import psutil
import pytest

from shardline import jobs
from shardline.errors import LaunchError
from shardline.launch.commands import Plan, launch_command
from shardline.supervise import RankError, run_ranks
from tests.conftest import rank_environment, wait_until

# What a rank does, without torch: rank 1 fails, rank 0 fails because of it.
FAILING = """
import os, sys, time, pathlib
from shardline.launch.failures import report_failure
work = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    report_failure(work, "rank 1 is the culprit", rank=1, log=work / "rank-1.log")
    sys.exit(3)
while not (work / "errors" / "rank-1.json").exists():
    time.sleep(0.01)
report_failure(work, "connection closed by peer", rank=0, log=None)
sys.exit(1)
"""
WAITING = """
import pathlib, sys, os, time
from shardline.launch.process import die_with_parent
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
        plan = Plan(run_id="test", nodes=1, devices=2)
        return launch_command("torchrun", [str(program), str(tmp_path)], plan)

    return make


def test_the_first_ranks_own_error_is_what_one_sees(command, tmp_path):
    culprit = (
        f"rank 1 on {platform.node()}, its log is {tmp_path}/rank-1.log: rank 1 is the culprit"
    )
    with pytest.raises(RankError, match=f"^{re.escape(culprit)}$"):
        run_ranks(
            command(FAILING),
            env=rank_environment(),
            log=tmp_path / "log",
            work=tmp_path,
            title="t",
            ranks=2,
        )
    assert "connection closed by peer" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_job(command, tmp_path, number):
    code = (
        "import sys; from pathlib import Path; from shardline.supervise import run_ranks;"
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
    job.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def test_a_run_is_trained_by_one_job_at_a_time(tmp_path):
    with (
        jobs._only_one(tmp_path, "mlp-0123456789ab"),
        pytest.raises(LaunchError) as error,
        jobs._only_one(tmp_path, "mlp-0123456789ab"),
    ):
        pass
    assert (
        f"mlp-0123456789ab is being trained by another job, which holds {tmp_path / 'lock'}"
        in str(error.value)
    )
    with jobs._only_one(tmp_path, "mlp-0123456789ab"):
        pass
