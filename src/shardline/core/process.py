"""Processes that end with their parent, and process groups that end with their leader."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make the kernel signal this process when its parent ends (prctl(2)), so that no rank is left over.

    Args:
        number: signal to send.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread of a process (tgkill(2)); `os.kill` may choose another thread.

    Raises:
        ProcessLookupError: the process has ended.
    """
    tgkill = getattr(_LIBC, "tgkill", None)  # not in glibc before 2.30
    if tgkill is None:
        os.kill(pid, number)
    elif tgkill(pid, pid, number):
        raise ProcessLookupError(f"process {pid} has ended")


def kill_group(leader: int) -> None:
    """Kill the remaining processes of a group.

    Args:
        leader: pid of the first process; it is not reused while a member lives.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Leader(Protocol):
    """What `end_group` uses of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The process, which leads a group."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""


def end_group(leader: Leader, grace_s: float) -> None:
    """Terminate the leader of a process group, and kill the group after a grace time."""
    leader.terminate()
    with suppress(subprocess.TimeoutExpired):
        leader.wait(grace_s)
    kill_group(leader.pid)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the block, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
