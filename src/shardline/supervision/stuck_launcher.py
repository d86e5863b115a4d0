"""Ending of stuck launchers, which wait for a lost host after the watchdogs have ended the ranks."""

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
def end_stuck_launcher(work: Path, launcher: int) -> Iterator[None]:
    """End a launcher that still runs after a hang was reported: Open MPI's waits forever for its daemon.

    Args:
        work: the run's folder in the store.
        launcher: its pid, which leads a session of its own. The whole session is ended, since
            Open MPI's remote shells leave the process group and keep the output open.
    """
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(_LOOK_S):
            with suppress(DataError, OSError):  # a record may be deleted meanwhile
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
