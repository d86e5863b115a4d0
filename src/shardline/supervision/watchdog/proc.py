"""State and exit of another process on Linux, and the kernel's out-of-memory kills."""

import signal
import time
from contextlib import suppress
from pathlib import Path

_EXIT_S = 0.1
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def state_of(pid: int) -> str:
    """Return the state of a process as one letter, see proc_pid_stat(5); X where there is none."""
    try:
        return _stat(pid)[0]
    except OSError:
        return "X" if _PROC.joinpath("self").exists() else "?"


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a zombie process: -9 for SIGKILL; None once its parent has reaped it.

    Its children are notified a moment before the code can be read.
    """
    end = time.monotonic() + _EXIT_S
    while True:
        try:
            fields = _stat(pid)
            status = int(fields[49])
        except (OSError, IndexError, ValueError):
            return None
        if fields[0] in "ZX":
            break
        if time.monotonic() > end:
            return None
        time.sleep(0.001)
    return -(status & 0x7F) if status & 0x7F else status >> 8


def parent_of(pid: int) -> int:
    """Return the number of a process's parent."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    # after the program's name, which may hold spaces and brackets
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def out_of_memory_kills() -> int:
    """Return the number of the kernel's out-of-memory kills, in this control group or machine."""
    for line in _lines(_PROC / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = _CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
        elif not controllers:
            file = _CGROUPS / path.lstrip("/") / "memory.events"
        else:
            continue
        if (count := _count(file)) is not None:
            return count
    return _count(_PROC / "vmstat") or 0


def _count(file: Path) -> int | None:
    for line in _lines(file):
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
