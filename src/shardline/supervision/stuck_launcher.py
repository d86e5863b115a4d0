"""An end of launchers that wait for a host that is lost, after the watchdogs have ended the ranks."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from shardline.core.errors import DataError
from shardline.supervision.failures import read_failures

_LOOK_S = 1.0
_GRACE_S = 20.0


@contextmanager
def ended_if_it_lingers(work: Path, launcher: int) -> Iterator[None]:
    """End a launcher that still runs a while after a hang was reported: Open MPI's waits without end for a daemon.

    Args:
        work: the run's folder in the store.
        launcher: its pid; it leads a session of its own, which is ended whole, since Open MPI's
            remote shells have left its process group and keep its output open.
    """
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(_LOOK_S):
            with suppress(DataError, OSError):  # one that is just being deleted
                if any(failure.kind == "hung" for failure in read_failures(work)):
                    if not has_ended.wait(_GRACE_S):
                        _kill_session(launcher)
                    return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()


def _kill_session(leader: int) -> None:
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
