"""The server of warm ranks: it has imported what ranks import, computes nothing, and forks.

`python -m shardline.training.rank_server FD SETTINGS` serves the socket with the descriptor FD.
"""

import atexit
import gc
import importlib
import importlib.util
import io
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from shardline.core.one_lightning import Package, keep
from shardline.supervision.warm import keeper
from shardline.supervision.warm.client import OF_JOBS
from shardline.supervision.warm.imports import Imported, watch_imports
from shardline.supervision.warm.messages import (
    Controller,
    WarmAnswer,
    WarmRequest,
    is_own,
    receive,
    send,
)

# What the actions of `training.rank` import; that program itself is run in each rank.
_MODULES = (
    "numpy", "torch", "shardline.provenance.record", "shardline.provenance.resume_certificates",
    "shardline.launch.preflight.preflight_check", "shardline.training.sealed_training", "shardline.training.fit",
    "shardline.training.script", "shardline.training.evaluate", "shardline.training.predict",
    "shardline.training.model_check", "shardline.training.stopwatch", "shardline.supervision.rank_frame",
)  # fmt: skip
# Lightning imports them, where they are installed, to learn whether a folder is in an object storage.
_IF_INSTALLED = ("adlfs", "gcsfs", "s3fs")
_PATIENCE_S = 10.0  # for a request that is on its way
_MAX_OUTPUT = 1 << 20
# Names of threads that may exist when ranks are forked. A fork has only the thread that forks, so another one's locks
# would stay locked: any other thread makes all ranks start cold.
THREADS_KNOWN: frozenset[str] = frozenset()


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a server.

    Attributes:
        key: digest of its environment.
        package: package of Lightning that is loaded.
        controller: Snakemake's process, with which the server ends.
        modules: what to import; empty for what ranks import.
    """

    key: str
    package: str
    controller: str
    modules: tuple[str, ...] = ()


def main() -> tuple[WarmRequest, str]:
    """Serve until Snakemake's process ends; return in each rank that is forked, with what the imports printed."""
    door = socket.socket(fileno=int(sys.argv[1]))
    settings = msgspec.json.decode(sys.argv[2], type=ServerSettings)
    try:
        controller = Controller.read(settings.controller)
        alive = controller.open_pipe() if controller else _leave()
    except OSError:
        _leave()
    if os.fork():
        _leave()  # the job's benchmark must not count this process, nor wait for it
    os.setsid()
    with tempfile.TemporaryFile() as output:
        _redirect(output.fileno())
        refusal, imported = _import(settings)
        printed = _printed(output.fileno())
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123, a device
        _redirect(nothing.fileno())
    gc.collect()
    gc.freeze()  # pages of these objects stay shared with the ranks
    while connection := _next(door, alive):
        request, fds = _read(connection)
        answer = _refuse(settings, request, refusal, imported) if request else None
        if answer and answer.is_old:
            door.close()  # the next job starts another server
        if request and not answer and _forked():
            door.close()
            os.close(alive)
            keeper.keep(connection, request, fds, imported.changed if imported else {})
            return request, printed
        _close(connection, fds, answer)
        if answer and answer.is_old:
            break
    return _leave()


def _forked() -> bool:
    """Return whether this is the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers
    if os.fork():
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True


def _close(connection: socket.socket, fds: Sequence[int], answer: WarmAnswer | None) -> None:
    with connection, suppress(OSError):
        if answer:
            send(connection, answer)
    for fd in fds:
        os.close(fd)


def finish(code: int) -> NoReturn:
    """End a rank as Python ends, without the destruction of all modules.

    That would copy the memory that the rank shares with the server: 0.4 s of a core, more than a short evaluation.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, signal.valid_signals()
    )  # Python calls no handlers from here on
    gc.collect()
    files = [one for one in gc.get_objects() if isinstance(one, io.IOBase)]
    for file in (
        *files,
        sys.stdout,
        sys.stderr,
    ):  # else what a program has not flushed would be lost
        with suppress(OSError, ValueError):
            file.flush()
    os._exit(code)


def _leave() -> NoReturn:
    os._exit(0)


def _redirect(descriptor: int) -> None:
    """Let a descriptor be the standard streams."""
    for standard in (0, 1, 2):
        os.dup2(descriptor, standard)


def _printed(descriptor: int) -> str:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.pread(descriptor, _MAX_OUTPUT, 0).decode(errors="replace")


def _import(settings: ServerSettings) -> tuple[str, Imported | None]:
    """Import all modules; return why ranks cannot be forked, or an empty string."""
    try:
        imported = watch_imports(
            lambda: _import_all(settings), of_jobs=OF_JOBS, threads=THREADS_KNOWN
        )
    except BaseException as error:
        return (
            f"the server could not import what ranks need ({type(error).__name__}: {error})",
            None,
        )
    torch = sys.modules.get("torch")
    if _opened_gpus() or (torch and torch.distributed.is_initialized()):
        return "imports have initialised CUDA or a process group", imported
    return imported.left, imported


def _import_all(settings: ServerSettings) -> None:
    package: Package = "lightning" if settings.package == "lightning" else "pytorch_lightning"
    keep((package,))
    first = "lightning.pytorch" if package == "lightning" else package
    installed = tuple(name for name in _IF_INSTALLED if importlib.util.find_spec(name))
    for module in settings.modules or (first, *_MODULES, *installed):
        importlib.import_module(module)
    if compat := sys.modules.get("shardline.core.lightning_compat"):
        compat.callback_factories()  # reads files of all packages, which would take 0.03 s of each rank


def _opened_gpus() -> bool:
    """Return whether this process has opened a GPU: CUDA cannot be used in a fork of such a process."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            if str(link.readlink()).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
                return True
    return False


def _next(door: socket.socket, alive: int) -> socket.socket | None:
    """Return the next connection; None once Snakemake's process has ended."""
    poll = select.poll()
    poll.register(door, select.POLLIN)
    poll.register(alive, 0)  # reports that all writing ends are closed
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if alive in ready:
            return None
        if door.fileno() in ready:
            connection, _ = door.accept()
            return connection


def _read(connection: socket.socket) -> tuple[WarmRequest | None, list[int]]:
    fds: list[int] = []
    try:
        if is_own(connection):
            connection.settimeout(_PATIENCE_S)
            body, fds = receive(connection)
            connection.settimeout(None)
            if body:
                return keeper.decoded(body), fds
    except (OSError, msgspec.MsgspecError):
        pass
    for fd in fds:
        os.close(fd)
    return None, []


def _refuse(
    settings: ServerSettings, request: WarmRequest, refusal: str, imported: Imported | None
) -> WarmAnswer | None:
    if request.key != settings.key:
        return WarmAnswer(cold="the server is that of another environment", is_other=True)
    if refusal or not imported:
        return WarmAnswer(cold=refusal)
    if file := imported.changed_file():
        return WarmAnswer(cold=f"{file} has changed since the server imported it", is_old=True)
    if name := imported.differs(request.env):
        return WarmAnswer(cold=f"imports have read {name}, which has another value for this job")
    return None


if __name__ == "__main__":
    _request, _output = main()
    # from here on this process is a rank, and ends as any program
    sys.argv = [_request.module, *_request.args]
    sys.orig_argv = [sys.executable, "-m", _request.module, *_request.args]
    if _output:
        sys.stderr.write(_output)
        sys.stderr.flush()
    try:
        runpy.run_module(_request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            finish(end.code or 0)
        raise
