"""The keeper of warm ranks: it forks them, forwards signals, and reports their end, as torchrun's agent does."""

import ctypes
import os
import platform
import re
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from shardline.core.process import die_with_parent
from shardline.supervision.warm.messages import TERMINATE, WarmAnswer, WarmRequest, send

# the signals that torchrun's agent forwards, see `launch.commands`
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_PORT = struct.Struct("=I")
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # default of torchrun's agent
_BLOCK = 512  # unit of ru_inblock and ru_oublock
_OPENBLAS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)  # fmt: skip


@dataclass(kw_only=True)
class _Ended:
    """Ranks that have ended.

    Attributes:
        codes: exit code by rank, in the order of their ends; negative for a signal.
        used: resources of each.
    """

    codes: dict[int, int] = field(default_factory=dict)
    used: list[resource.struct_rusage] = field(default_factory=list)

    @property
    def worst(self) -> int:
        """The exit code of the first rank that failed; 0 if none has."""
        return next((code for code in self.codes.values() if code), 0)

    def answer(self, code: int) -> WarmAnswer:
        """Return what the job is told."""
        return WarmAnswer(
            code=code,
            cpu_s=round(sum(one.ru_utime + one.ru_stime for one in self.used), 3),
            peak_rss_bytes=sum(one.ru_maxrss for one in self.used) * 1024,
            read_bytes=sum(one.ru_inblock for one in self.used) * _BLOCK,
            written_bytes=sum(one.ru_oublock for one in self.used) * _BLOCK,
        )


def keep(line: socket.socket, request: WarmRequest, fds: Sequence[int]) -> None:
    """Fork the ranks; return in each of them, with its environment. The keeper itself exits.

    Args:
        line: connection to the job; without it, the ranks end.
        fds: standard input, output and error of the ranks, then descriptors that they inherit.
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
    pids: dict[int, int] = {}
    for rank in range(request.ranks):
        if pid := os.fork():
            pids[pid] = rank
            continue
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        line.close()
        os.close(write)
        _become(request, rank, read)
        return
    os.close(read)
    _watch(line, request, pids, write)


def _become(request: WarmRequest, rank: int, ports: int) -> None:
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
    maps = Path("/proc/self/maps").read_text()
    for path in set(re.findall(r"/\S*openblas\S*", maps)):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if function := getattr(library, name, None):
                function(threads)


def _watch(line: socket.socket, request: WarmRequest, pids: dict[int, int], ports: int) -> NoReturn:
    """Wait for the ranks, as torchrun's agent, and exit."""
    wake = _listen()
    store = None
    try:
        send(line, WarmAnswer(keeper=os.getpid()))
        if request.ranks > 1:
            store = _open_store()
            os.write(ports, _PORT.pack(store.port) * request.ranks)
    except OSError:
        _end_group()
    os.close(ports)
    ended, poll, deadline = _Ended(), select.poll(), None
    for descriptor in (line.fileno(), wake):
        poll.register(descriptor, select.POLLIN)
    while True:
        was_well = not ended.worst
        _reap(pids, ended)
        if not pids:
            break
        if ended.worst and was_well:
            _name_the_first(ended, request)
            _send_all(pids, signal.SIGTERM)
            deadline = time.monotonic() + request.grace_s
        ready = poll.poll(
            None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
        )
        if any(descriptor == line.fileno() for descriptor, _ in ready):
            if line.recv(1) != TERMINATE:
                _end_group()  # the job has ended
            os.kill(os.getpid(), signal.SIGTERM)
        numbers = os.read(wake, 4096) if any(descriptor == wake for descriptor, _ in ready) else b""
        for number in numbers:
            if number in _FORWARDED:
                _send_all(pids, number)
                if request.ranks > 1:
                    deadline = deadline or time.monotonic() + request.grace_s
        if deadline is not None and time.monotonic() >= deadline:
            _send_all(pids, signal.SIGKILL)
            deadline = None
    if ended.worst and was_well and request.ranks > 1:
        _name_the_first(ended, request)
    code = ended.worst if request.ranks == 1 else int(bool(ended.worst))
    with suppress(OSError):
        send(line, ended.answer(code))
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
    os.write(write, bytes([signal.SIGCHLD]))  # a rank may have ended before
    return read


def _reap(pids: dict[int, int], ended: _Ended) -> None:
    for pid in [*pids]:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            ended.codes[pids.pop(pid)] = os.waitstatus_to_exitcode(status)
            ended.used.append(used)


def _name_the_first(ended: _Ended, request: WarmRequest) -> None:
    """Print which rank failed, in the words in which Open MPI names a killed rank."""
    rank, code = next((rank, code) for rank, code in ended.codes.items() if code)
    if request.ranks == 1:
        return
    how = f"on signal {-code}" if code < 0 else f"with code {code}"
    line = f"process rank {rank} with PID 0 on node {platform.node()} exited {how}; the other ranks are stopped"
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _send_all(pids: Mapping[int, int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)  # not reaped yet, so its number is its own


def _open_store() -> Any:
    """Return the store of the ranks, on a free port of this machine; its threads are this process's alone."""
    from shardline.launch.stores import NarrowStore

    return NarrowStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def _end_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def decoded(body: bytes) -> WarmRequest:
    """Return a request.

    Raises:
        msgspec.MsgspecError: this is none.
    """
    return msgspec.json.decode(body, type=WarmRequest)
