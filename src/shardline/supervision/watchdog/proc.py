"""State, resource use and exit code of another process on Linux, and the kernel's out-of-memory kills."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_EXIT_S = 0.1
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def state_of(pid: int) -> str:
    """Return the state of a process as a letter, see proc_pid_stat(5); X if there is no such process."""
    try:
        return _stat(pid)[0]
    except OSError:
        return "X" if _PROC.joinpath("self").exists() else "?"


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a zombie process: -9 for SIGKILL; None once its parent has reaped it.

    The kernel notifies the children a moment before the code can be read.
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
    """Return the pid of a process's parent."""
    return int(_stat(pid)[1])


def usage_of(pid: int) -> tuple[int, float]:
    """Return the memory and CPU time of a process and its descendants, without this process.

    Returns:
        Resident memory in bytes, where shared memory counts in each process, and seconds of CPU
        time (user and system), which include children that have exited.

    Raises:
        OSError: the process is gone or a zombie.
    """
    if (own := _stat(pid))[0] in "ZX":
        raise ProcessLookupError(pid)
    found = [own]
    for child in _descendants(pid):
        with suppress(OSError):  # the child has exited
            found.append(_stat(child))
    pages = sum(int(fields[21]) for fields in found)
    ticks = sum(int(number) for fields in found for number in fields[11:15])
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        # the kernel lists a child with the thread that started it
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                for child in map(int, (thread / "children").read_bytes().split()):
                    if child != os.getpid():
                        yield child
                        yield from _descendants(child)


def _stat(pid: int) -> list[str]:
    # fields after the program's name, which may contain spaces and brackets
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
