"""A real watchdog beside a rank that does nothing: the job's wishes reach the rank, its end is told."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from shardline.supervision.failure_records import read_failures
from tests.support.processes import wait_until
from tests.support.rotation import rotating

RANK = """
import signal, sys, threading, time
from pathlib import Path
from shardline_io import heartbeat_memory
from shardline.supervision.watchdog import Watch
from shardline.core.world import World

phase, folder = sys.argv[1], Path(sys.argv[2])
signal.signal(signal.SIGTERM, lambda number, frame: print("told to end", flush=True))
world = World(rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="", master_port=0, launcher="t")
Watch(hang_timeout_s=float(sys.argv[3]), startup_timeout_s=60).start(world, work=folder, logs=folder)
for _ in range(16):
    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
heartbeat_memory.mine().tick(3, phase)  # the test waits for this: a stop finds all threads
if sys.argv[3] != "0":
    while not (folder / "hangs").exists():
        heartbeat_memory.mine().tick(3, phase)
        time.sleep(0.05)
    time.sleep(600)
while not heartbeat_memory.mine().stop_reason():
    time.sleep(0.01)
print(heartbeat_memory.mine().stop_reason(), flush=True)
heartbeat_memory.mine().leave()
"""

# A rank whose work is done, and whose exit takes longer than its timeout.
LEAVING = f"""{RANK.partition("if sys.argv[3]")[0]}
heartbeat_memory.mine().leave()
time.sleep(5)
print("ended", flush=True)
"""

# A rank whose script takes its stops by shardline_io, and hangs.
SCRIPT_RANK = """
import sys
from pathlib import Path
from shardline.config.resolved import DatasetPlace
from shardline.core.world import World
from shardline.supervision.watchdog import Watch
from shardline.training import script

folder = Path(sys.argv[2])
world = World(rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="", master_port=0, launcher="t")
Watch(hang_timeout_s=float(sys.argv[3]), startup_timeout_s=60).start(world, work=folder, logs=folder)
script.prepare(folder)
place = DatasetPlace(manifest=folder, shards=folder)
script.run_script(f"script: {folder / 'train.py'}", world, run_json=folder, dataset=place, work=folder)
"""
PROGRAM = """
import atexit, os, signal, sys, time
from shardline_io import heartbeat_memory, stopping

def sticks_here():
    if {is_stopped}:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)

stopping.begin()
heartbeat_memory.mine().tick(3, {phase!r})
atexit.register(sticks_here)
"""


class Rank:
    """A rank with its watchdog."""

    def __init__(self, folder, phase, timeout_s, code=RANK):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, phase, str(folder), str(timeout_s)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_until(lambda: self.sign.get("step") == 3, self.process)
        self.watchdog = psutil.Process(self.process.pid).children()[0]

    @property
    def sign(self):
        file = self.folder / "watch/rank-00000.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def end(self):
        """Wait until rank and watchdog have ended, and return what was printed."""
        told, _ = self.process.communicate(timeout=120)
        self.watchdog.wait(60)
        return told


@pytest.fixture
def start(tmp_path):
    """Start a rank, and end what a failed test leaves of it."""
    ranks = []

    def make(phase="train", timeout_s=0, **others):
        ranks.append(Rank(tmp_path, phase, timeout_s, **others))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.process.kill()


@pytest.mark.parametrize(
    ("phase", "told"), [("train", "deadline\n"), ("script", "told to end\ndeadline\n")]
)
def test_the_jobs_wish_to_stop_reaches_the_rank(start, tmp_path, phase, told):
    rank = start(phase)
    (tmp_path / "stop.json").write_text('{"reason": "deadline", "time": "2026-01-01T00:00:00Z"}')
    assert rank.end() == told
    assert rank.sign["state"] == "L"
    assert read_failures(tmp_path) == []


def test_what_a_scheduler_sends_to_all_processes_does_not_end_the_watchdog(start, tmp_path):
    rank = start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        rank.watchdog.send_signal(number)
    (tmp_path / "stop.json").write_text('{"reason": "preempted"}')
    assert rank.end() == "preempted\n"


def test_a_rank_goes_on_without_its_watchdog(start):
    rank = start()
    rank.watchdog.kill()
    wait_until(lambda: rank.watchdog.status() == psutil.STATUS_ZOMBIE, rank.process)
    assert rank.process.poll() is None


def test_a_killed_rank_is_told_of_even_by_a_watchdog_that_was_stopped(start, tmp_path):
    rank = start()
    rank.watchdog.suspend()
    rank.process.kill()
    assert "was killed by a signal (SIGKILL) at step 3 (train)" in rank.end()
    (failure,) = read_failures(tmp_path)
    assert (failure.rank, failure.code, failure.step, failure.is_killed) == (0, 137, 3, True)


def test_a_store_that_is_gone_does_not_keep_a_hung_rank_alive(start, tmp_path):
    rank = start(timeout_s=2)
    (tmp_path / "watch").rename(tmp_path / "gone")
    (tmp_path / "hangs").touch()
    assert "rank 0 on " in rank.end()
    assert rank.process.returncode == -signal.SIGKILL
    assert read_failures(tmp_path)[0].kind == "hung"


def test_a_rank_whose_work_is_done_may_end_slowly(start, tmp_path):
    rank = start(timeout_s=2, code=LEAVING)
    assert rank.end() == "ended\n"
    assert rank.process.returncode == 0
    assert read_failures(tmp_path) == []


def test_the_main_thread_of_a_stopped_rank_writes_the_stacks_itself(start, tmp_path):
    """Another one would read frames that change, and crash the rank: then nobody is told that it hung."""
    rank = start(timeout_s=2)
    rank.process.send_signal(signal.SIGSTOP)
    (tmp_path / "hangs").touch()  # it does not go on when it is woken for its stacks
    assert "its process is stopped (state T)" in rank.end()
    stacks = (tmp_path / "rank-0.stack").read_text()
    assert stacks.count("hread 0x") == 17
    assert stacks.rindex("Current thread") == stacks.rindex("hread 0x") - len("Current t")


@pytest.mark.parametrize(
    ("phase", "is_stopped"), [("train", True), ("end", False), *rotating(("train", False))]
)
def test_the_stacks_of_a_hung_script_are_behind_those_of_its_rank(
    start, tmp_path, phase, is_stopped
):
    (tmp_path / "train.py").write_text(PROGRAM.format(phase=phase, is_stopped=is_stopped))
    rank = start(timeout_s=2, code=SCRIPT_RANK)
    program = [one for one in psutil.Process(rank.process.pid).children() if one != rank.watchdog]
    printed = rank.end()
    assert f"hangs at step 3 ({phase})" in printed
    assert ("its process is stopped (state T)" in printed) == is_stopped
    stacks = (tmp_path / "rank-0.stack").read_text()
    assert stacks.index("in run_script") < stacks.index("in sticks_here")
    assert not psutil.wait_procs(program, timeout=60)[1]
