"""A rank that the kernel ends for want of memory, in a control group of its own."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.needs import require

pytestmark = pytest.mark.fault

GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def squeeze() -> Iterator[Callable[[int], None]]:
    """Move a rank and its watchdog into a control group that has less memory than the rank will ask for."""
    able = os.geteuid() == 0 and (GROUPS / "memory.limit_in_bytes").exists()
    require(able, "cgroup v1 with memory, and root, are needed to bound a rank's memory")
    group = GROUPS / f"shardline-faults-{os.getpid()}"
    group.mkdir()

    def move(pid: int) -> None:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        # The kernel counts its kills in the killed process's group, where a scheduler has put the watchdog as well.
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            (group / "cgroup.procs").write_text(str(process.pid))

    yield move
    group.rmdir()


HUNGRY = """
from pathlib import Path

from gated import Gated


class Hungry(Gated):
    def on_train_batch_end(self, *_):
        if self.global_rank == 1 and Path("hungry").exists():
            Path("hungry").unlink()
            bytearray(b"1") * (1 << 30)
"""


def test_a_rank_that_runs_out_of_memory_is_named(gated, squeeze, tmp_path):
    (tmp_path / "hungry.py").write_text(HUNGRY)
    faulted = gated(devices=2, model="hungry:Hungry")

    def starve() -> None:
        (tmp_path / "hungry").touch()
        squeeze(faulted.pid_of(1))

    code, output = faulted.run(starve)
    assert code == 128 + signal.SIGKILL, output
    end = time.monotonic() + 30  # this launcher is as fast as the watchdog that writes the report
    while "lack of memory" not in faulted.reasons() and time.monotonic() < end:
        time.sleep(0.05)
    assert "rank 1" in faulted.reasons()
    assert "lack of memory" in faulted.reasons()
    assert not faulted.sealed()
    faulted.goes_on()
