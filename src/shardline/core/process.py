"""An end of every process with its parent, and of a group with its leader."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent ends (prctl(2)), so that no rank is left over.

    Args:
        number: another signal, of which the kernel only tells it the end.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to a process, for its main thread to handle: Linux may choose any other (tgkill(2)).

    Raises:
        ProcessLookupError: it has ended.
    """
    tgkill = getattr(_LIBC, "tgkill", None)  # not in glibc before 2.30
    if tgkill is None:
        os.kill(pid, number)
    elif tgkill(pid, pid, number):
        raise ProcessLookupError(f"process {pid} has ended")


def kill_group(leader: int) -> None:
    """End what is left of a process group.

    Args:
        leader: pid of its first process; it stays taken while a member lives.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_group(leader: "subprocess.Popen[Any]", grace_s: float) -> None:
    """Ask the leader of a process group to end; after a grace time, end them all."""
    leader.terminate()
    with suppress(subprocess.TimeoutExpired):
        leader.wait(grace_s)
    kill_group(leader.pid)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into the same orderly end as Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
