"""The keeper of warm ranks: it forks them, forwards signals, and reports their end, as torchrun's agent does."""

import ctypes
import importlib
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from shardline.core.process import die_with_parent
from shardline.supervision.warm.imports import set_changed
from shardline.supervision.warm.messages import TERMINATE, WarmAnswer, WarmRequest, send, unspelled

# the signals that torchrun's agent forwards, see `launch.commands`
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_PORT = struct.Struct("=I")
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # default of torchrun's agent
_MAX_SIGNALS = 4096
_BLOCK = 512  # unit of ru_inblock and ru_oublock
_OPENBLAS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)  # fmt: skip


@dataclass(kw_only=True)
class _Ranks:
    """The ranks of a keeper.

    Attributes:
        size: number of ranks.
        grace_s: seconds between SIGTERM and SIGKILL of the remaining ranks.
        pids: rank of each process that runs.
        codes: exit code of each rank that has ended, in the order of their ends; negative for a signal.
        used: resources of the ranks that have ended.
        deadline: time at which the remaining ranks are killed.
    """

    size: int
    grace_s: float
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    used: list[resource.struct_rusage] = field(default_factory=list)
    deadline: float | None = None

    def reap(self) -> None:
        """Collect the ranks that have ended; the first that fails is named, and the others are asked to end."""
        for pid in [*self.pids]:
            found, status, used = os.wait4(pid, os.WNOHANG)
            if found:
                was_well = not self.code
                rank, code = self.pids.pop(pid), os.waitstatus_to_exitcode(status)
                self.codes[rank] = code
                self.used.append(used)
                if code and was_well and self.size > 1:
                    _name(rank, pid, code)
                    self.end()

    def send(self, number: int) -> None:
        """Send a signal to each rank that runs."""
        for pid in self.pids:
            os.kill(pid, number)  # not reaped yet, so its number is its own

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ask the ranks to end; those of several ranks that do not are killed later."""
        self.send(number)
        if self.size > 1:
            self.deadline = self.deadline or time.monotonic() + self.grace_s

    def left_ms(self) -> float | None:
        """Return the milliseconds until the deadline; at the deadline, kill the ranks."""
        if self.deadline is None:
            return None
        if (left_s := self.deadline - time.monotonic()) > 0:
            return 1000 * left_s
        self.send(signal.SIGKILL)
        self.deadline = None
        return None

    @property
    def code(self) -> int:
        """The exit code of the first rank that failed; 0 if none has."""
        return next((code for code in self.codes.values() if code), 0)

    def answer(self) -> WarmAnswer:
        """Return how the ranks ended, with the exit code of torchrun's agent for several ranks."""
        return WarmAnswer(
            code=self.code if self.size == 1 else int(bool(self.code)),
            cpu_s=round(sum(one.ru_utime + one.ru_stime for one in self.used), 3),
            peak_rss_bytes=sum(one.ru_maxrss for one in self.used) * 1024,
            read_bytes=sum(one.ru_inblock for one in self.used) * _BLOCK,
            written_bytes=sum(one.ru_oublock for one in self.used) * _BLOCK,
        )


def _name(rank: int, pid: int, code: int) -> None:
    """Print which rank failed first, in the words in which Open MPI names a killed rank."""
    how = f"on signal {-code}" if code < 0 else f"with code {code}"
    place = f"process rank {rank} with PID {pid} on node {platform.node()}"
    with suppress(OSError):
        os.write(2, f"{place} exited {how}; the other ranks are stopped\n".encode())


def keep(
    line: socket.socket,
    request: WarmRequest,
    fds: Sequence[int],
    changed: Mapping[str, str | None],
) -> None:
    """Fork the ranks; return in each of them, with its environment. The keeper itself exits.

    Args:
        line: connection to the job; without it, the ranks end.
        fds: standard input, output and error of the ranks, then descriptors that they inherit.
        changed: variables that the server's imports have set, or removed (None).
    """
    os.setsid()
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.sched_setaffinity(0, request.cpus)
    for standard, fd in enumerate(fds[:3]):
        os.dup2(fd, standard)
        os.close(fd)
    parent = os.getpid()
    read, write = os.pipe()
    ranks = _Ranks(size=request.ranks, grace_s=request.grace_s)
    for rank in range(request.ranks):
        if pid := os.fork():
            ranks.pids[pid] = rank
            continue
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        line.close()
        os.close(write)
        _become(request, rank, read, changed)
        return
    os.close(read)
    _watch(line, request, ranks, write)


def _become(request: WarmRequest, rank: int, ports: int, changed: Mapping[str, str | None]) -> None:
    """Give this process the environment of a rank."""
    place: Mapping[str, str] = {}
    if request.ranks > 1:
        if len(port := os.read(ports, _PORT.size)) < _PORT.size:
            os._exit(1)
        place = place_of(rank, request.ranks, _PORT.unpack(port)[0], request.run_id)
    os.close(ports)
    os.environ.clear()
    os.environ.update({**(_NCCL if place else {}), **request.env, **place})
    time.tzset()
    folder, tempfile.tempdir = tempfile.gettempdir(), None  # of the server's environment
    set_changed(changed, folder)
    importlib.invalidate_caches()  # folders may contain new modules
    if threads := request.env.get("OPENBLAS_NUM_THREADS"):
        set_openblas_threads(int(threads))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # else unseeded ranks would draw the same numbers; `random` does this itself


def place_of(rank: int, ranks: int, port: int, run_id: str) -> dict[str, str]:
    """Return the variables that torchrun's agent gives to a rank of one node."""
    return {
        "LOCAL_RANK": str(rank), "RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank), "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(ranks), "WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def set_openblas_threads(threads: int) -> None:
    """Set the number of threads of each loaded OpenBLAS, which the server has loaded with one thread."""
    for path in mapped_libraries(Path("/proc/self/maps").read_text(), "openblas"):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if function := getattr(library, name, None):
                function(threads)


def mapped_libraries(maps: str, name: str) -> set[str]:
    """Return the mapped files whose names contain a text.

    Args:
        maps: content of `/proc/self/maps`; a path is the rest of a line, and may contain spaces.
    """
    paths = {line[line.index("/") :] for line in maps.splitlines() if "/" in line}
    return {path for path in paths if name in path.rpartition("/")[2]}


def _watch(line: socket.socket, request: WarmRequest, ranks: _Ranks, ports: int) -> NoReturn:
    """Wait for the ranks, as torchrun's agent, and exit."""
    wake, store = _listen(), None
    try:
        send(line, WarmAnswer(keeper=os.getpid()))
        if request.ranks > 1:
            store = _open_store()
            os.write(ports, _PORT.pack(store.port) * request.ranks)
    except OSError:
        _end_group()
    os.close(ports)
    poll = select.poll()
    for descriptor in (line.fileno(), wake):
        poll.register(descriptor, select.POLLIN)
    ranks.reap()
    while ranks.pids:
        ready = {descriptor for descriptor, _ in poll.poll(ranks.left_ms())}
        if line.fileno() in ready:
            if line.recv(1) != TERMINATE:
                _end_group()  # the job has ended
            ranks.end()
        for number in os.read(wake, _MAX_SIGNALS) if wake in ready else b"":
            if number in _FORWARDED:
                ranks.end(number)
        ranks.reap()
    with suppress(OSError):
        send(line, ranks.answer())
    del store
    os._exit(0)


def _listen() -> int:
    """Handle signals; return a descriptor that has their numbers."""
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_FORWARDED):
        signal.signal(number, lambda *_: None)
    return read


def _open_store() -> Any:
    """Return the store of the ranks, on a free port of this machine; its threads are this process's alone."""
    from shardline.launch.stores import NarrowStore

    return NarrowStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def _end_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def decoded(body: bytes) -> WarmRequest:
    """Return a request, with its environment as the rank gets it.

    Raises:
        msgspec.MsgspecError: this is none.
    """
    found = msgspec.json.decode(body, type=WarmRequest)
    return msgspec.structs.replace(found, env=unspelled(found.env))
