"""A rank's heartbeat memory, read by another process; and which of several ranks' messages a job gives."""

import os
import subprocess
import sys

import pytest

from shardline.supervision.failure_records import (
    first_failure,
    read_failures,
    report_failure,
    reset_failures,
)
from shardline_io import heartbeat_memory

PEER = """
import sys
from shardline_io.heartbeat_memory import HeartbeatMemory
memory = HeartbeatMemory(int(sys.argv[1]))
progress = memory.read()
print(progress.step, progress.phase, progress.ticks, memory.has_left)
memory.request_stop("requested")
"""


def test_another_process_reads_it_and_asks_for_a_stop():
    descriptor = heartbeat_memory.shared_file()
    mine = heartbeat_memory.HeartbeatMemory(descriptor)
    mine.tick(0, "startup")
    mine.tick(7, "validation")
    mine.again()
    mine.leave()
    peer = [sys.executable, "-c", PEER, str(descriptor)]
    done = subprocess.run(peer, pass_fds=(descriptor,), capture_output=True, text=True, check=True)
    os.close(descriptor)
    assert done.stdout == "7 validation 3 True\n"
    assert mine.stop_reason() == "requested"


def test_the_first_reason_to_stop_stays():
    mine = heartbeat_memory.HeartbeatMemory()
    assert mine.stop_reason() is None
    mine.request_stop("deadline")
    mine.request_stop("preempted")
    assert mine.stop_reason() == "deadline"
    with pytest.raises(KeyError):
        mine.request_stop("a whim")


def test_a_tick_renews_it():
    mine = heartbeat_memory.HeartbeatMemory()
    before = mine.read()
    mine.again("save")
    after = mine.read()
    assert (before.phase, before.ticks, before.step) == ("startup", 0, 0)
    assert (after.phase, after.ticks, after.step) == ("save", 1, 0)


def test_without_a_watchdog_there_is_one_too(monkeypatch):
    monkeypatch.setattr(heartbeat_memory, "_mine", None)
    heartbeat_memory.mine().tick(3, "train")
    assert heartbeat_memory.mine().read().step == 3
    own = heartbeat_memory.adopt(heartbeat_memory.HeartbeatMemory())
    assert heartbeat_memory.mine() is own


def test_what_a_watchdog_saw_goes_before_what_ranks_say(tmp_path, capsys):
    log = tmp_path / "rank-1.log"
    report_failure(tmp_path, "connection closed by peer", rank=1, log=log)
    told = first_failure(tmp_path, 2)
    assert told.endswith(f"its log is {log}: connection closed by peer")
    report_failure(tmp_path, "rank 2 was killed", rank=2, log=None, code=137)
    assert first_failure(tmp_path, 2) == "rank 2 was killed"
    report_failure(tmp_path, "rank 0 hangs", rank=1, log=None, kind="hung", code=137, step=12)
    assert first_failure(tmp_path, 2) == "rank 0 hangs"
    kinds = [(one.rank, one.kind, one.step) for one in read_failures(tmp_path)]
    assert kinds == [(1, "hung", 12), (2, "failed", None), (1, "failed", None)]
    assert "rank 0 hangs" in capsys.readouterr().err
    reset_failures(tmp_path)
    assert read_failures(tmp_path) == []
    assert first_failure(tmp_path, 2) is None
