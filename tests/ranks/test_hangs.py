"""Ranks that stop, stick or are killed: the diagnosis is named, all end, and the same command goes on."""

import json
import os
import platform
import signal

import psutil
import pytest

from shardline.checkpoints.folder import last_step
from shardline.supervision.failure_records import first_failure, read_failures, reset_failures
from shardline.supervision.watchdog.heartbeats import waits_for_peers
from tests.support.processes import end_of_ranks, wait_until
from tests.support.rotation import rotating

TIMEOUT_S = 8
EVERY_STEPS = 5
HOLD = 8
# Sticks before its collective operation as long as a file is there: with a lock, or in compiled code.
MODEL = """
import ctypes, threading
from pathlib import Path
from shardline.training.models.linear import Linear

class Stuck(Linear):
    def training_step(self, batch, batch_idx):
        how = Path("stuck").read_text() if Path("stuck").exists() else ""
        if how and self.global_rank == 1 and self.global_step == 12:
            if how == "lock":
                threading.Semaphore(0).acquire()
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):  # the second waits for the first, and holds the interpreter's lock
                ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        return super().training_step(batch, batch_idx)
"""
ROW = {"model": "project_model:Stuck", "trainer.max_epochs": 1, "global_batch": 16, "devices": 2}
HOST = platform.node()
_whole: dict[str, bytes] = {}


class Hang:
    """A training of two ranks that something holds up."""

    def __init__(self, ranks):
        self.ranks, self.work = ranks, ranks.root / "broken/work"

    def start(self, hold=None, timeout_s=TIMEOUT_S):
        """Start it, and wait until a state is saved; with `hold`, it waits after this step for `release`."""
        self.process = self.ranks.start("broken", hold=hold, hang_timeout_s=timeout_s)
        wait_until(self.is_saved, self.process)
        self.started = psutil.Process(self.process.pid).children(recursive=True)
        return self

    def is_saved(self):
        return last_step(self.work / "checkpoints") >= EVERY_STEPS and all(map(self.sign, (0, 1)))

    def sign(self, rank):
        file = self.work / f"watch/rank-{rank:05d}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def send(self, number, rank):
        os.kill(self.sign(rank)["pid"], number)

    def end(self):
        """Wait for the end of the ranks, see that nothing of them is left, and return the job's message."""
        end_of_ranks(self.process)
        assert self.process.returncode != 0
        _, alive = psutil.wait_procs(self.started, timeout=60)
        assert not alive
        return first_failure(self.work, 2)

    def stack(self, rank):
        kept = self.ranks.root / f"broken/logs/rank-{rank}.stack"
        assert kept.read_text() == (self.work / f"watch/rank-{rank:05d}.stack").read_text()
        return kept.read_text()

    def goes_on(self):
        """Run the same command again, and tell whether it ends as if nothing had happened."""
        reset_failures(self.work)  # as the job does
        self.ranks.train("broken")
        if "bits" not in _whole:
            self.ranks.train("whole")
            _whole["bits"] = self.ranks.model("whole")
        assert self.ranks.provenance("broken")["training"]["resumed_step"] >= EVERY_STEPS
        return self.ranks.model("broken") == _whole["bits"]


@pytest.fixture
def hang(prepare, workspace):
    """Return a training that is ready to be started."""
    workspace.write("project_model.py", MODEL)
    return Hang(prepare(EVERY_STEPS, **ROW))


@pytest.mark.parametrize("rank", [1, *rotating(0)])
def test_a_stopped_rank_is_named(hang, rank):
    hang.start(hold=HOLD).send(signal.SIGSTOP, rank)
    hang.ranks.release()
    told = hang.end()
    assert told.startswith(f"rank {rank} on {HOST} hangs at step ")
    assert "its process is stopped (state T)" in told
    assert f"stacks of the ranks: {hang.ranks.root}/broken/logs/rank-*.stack" in told
    assert all("in main" in hang.stack(rank) for rank in (0, 1))
    assert read_failures(hang.work)[0].kind == "hung"
    assert hang.goes_on()


@pytest.mark.parametrize("how", ["compiled code", *rotating("lock")])
def test_a_rank_that_sticks_before_its_collective_operation_is_named(hang, workspace, how):
    workspace.write("stuck", how)
    hang.start()
    told = hang.end()
    assert told.startswith(f"rank 1 on {HOST} hangs at step 12 (train), no heartbeat for ")
    assert "it runs its own code while other ranks wait" in told
    assert "in training_step" in hang.stack(1)
    assert waits_for_peers(hang.stack(0))
    (workspace.path / "stuck").unlink()
    assert hang.goes_on()


def test_a_killed_rank_is_named_by_its_watchdog(hang):
    hang.start(hold=HOLD).send(signal.SIGKILL, 1)
    hang.ranks.release()
    told = hang.end()
    assert told.startswith(f"rank 1 on {HOST} was killed by a signal")
    assert "run the same command again to resume" in told
    assert hang.goes_on()


def test_nobody_counts_the_time_in_which_the_whole_job_was_stopped(hang):
    timeout_s = 2 * TIMEOUT_S  # since a busy machine has to end the training, too
    hang.start(hold=HOLD, timeout_s=timeout_s)
    for process in hang.started:
        process.suspend()
    hang.ranks.release()
    states = lambda: {process.status() for process in hang.started}  # noqa: E731
    wait_until(lambda: states() == {psutil.STATUS_STOPPED}, hang.process)
    signal.sigtimedwait([], 1.5 * timeout_s)
    for process in hang.started:
        process.resume()
    end_of_ranks(hang.process)
    assert hang.process.returncode == 0
    assert read_failures(hang.work) == []
    psutil.wait_procs(hang.started, timeout=60)
    assert [hang.sign(rank)["state"] for rank in (0, 1)] == ["L", "L"]  # left in good order
