"""Child processes that never outlive this process."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOUND, _NOT_STARTED = 127, 126  # as shells report it
_KILL_S = 5.0  # a process may hang in the kernel, on a mount that is gone
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def log(text: str) -> None:
    """Print a line on standard error."""
    print(f"azureml node: {text}", file=sys.stderr, flush=True)


def in_shell(command: str) -> list[str]:
    """Return the command that runs a shell command."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


class Child:
    """A command in its own process group, which never outlives this process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        grace_s: float,
        folder: Path | None = None,
    ) -> None:
        """Start the command, with this process's standard output and error.

        Args:
            grace_s: seconds between the request to end and SIGKILL.
        """
        self._grace_s, self._kill_at = grace_s, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            log(f"{command[0]} cannot be started: {error.strerror}")
            self._code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED

    def poll(self) -> int | None:
        """Return the exit code, 128 + n for signal n; None while it runs."""
        if self._code is None and self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._signal(signal.SIGKILL)  # processes that the command left behind
                self._code = code if code >= 0 else 128 - code
            elif self._kill_at and time.monotonic() > self._kill_at:
                self._signal(signal.SIGKILL)
        return self._code

    def end(self) -> None:
        """Ask the process group to end; `poll` kills it after the grace time."""
        if self.poll() is None and not self._kill_at:
            self._kill_at = time.monotonic() + self._grace_s
            self._signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        while (code := self.poll()) is None:
            time.sleep(POLL_S)
        return code

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class Stop:
    """Records whether this process received a signal to stop; its user then ends the children."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    @property
    def code(self) -> int:
        """Exit code of a process that received this signal."""
        return 128 + self.number


def describe_code(code: int) -> str:
    """Describe how a process ended."""
    with suppress(ValueError):
        if code > 128:
            return f"was ended by {signal.Signals(code - 128).name} (code {code})"
    return f"ended with code {code}"


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent ends (prctl(2))."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, in any session (prctl(2))."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kill all descendants of this process, in any session."""
    limit = time.monotonic() + _KILL_S
    while (below := _descendants()) and time.monotonic() < limit:
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_S / 5)


def _descendants() -> set[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # the name, in parentheses, may contain any character
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {os.getpid()}
