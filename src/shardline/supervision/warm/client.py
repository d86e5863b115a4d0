"""A job's side of warm ranks: find or start the server of this environment, and hold on to the ranks."""

import io
import json
import os
import re
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from shardline.core.canonical import digest
from shardline.core.rank_environment import without_place
from shardline.supervision.warm.messages import (
    TERMINATE,
    Controller,
    WarmAnswer,
    WarmRequest,
    is_own,
    receive,
    send,
    spelled,
)

VARIABLE = "SHARDLINE_WARM"  # Snakemake's process, see `Controller`
PYTORCH_LIGHTNING = "pytorch_lightning"  # the package that is loaded if a run names none
_SERVER = "shardline.training.rank_server"
_SLOTS = 3  # servers of a Snakemake process, each of another environment
_IMPORTS_S = 300.0  # longest wait for a server's imports
_DIGITS = 24
_OF_LAUNCHERS = (VARIABLE, "SHARDLINE_LOCK_DESCRIPTORS")  # ranks get descriptors with other numbers
# Variables that differ between the jobs of an environment. Nothing reads them while torch is imported: OpenBLAS
# prefers its own number of threads to GotoBLAS's, and `keeper` makes ranks read the folder for temporary files again.
OF_JOBS = (
    "CUDA_VISIBLE_DEVICES", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OLDPWD", "PWD", "SHLVL", "_",
    "TEMP", "TEMPDIR", "TMP", "TMPDIR", *_OF_LAUNCHERS,
)  # fmt: skip
_SPACES = ("mnt", "pid", "user", "net", "cgroup")


def offer(*, is_on: bool) -> None:
    """Let the jobs that this process starts fork their ranks from servers, which end with this process.

    Args:
        is_on: whether they may; if not, an offer that was inherited is withdrawn.
    """
    os.environ.pop(VARIABLE, None)
    if is_on and sys.platform == "linux":
        read, _ = (
            os.pipe()
        )  # nobody writes: both ends close with this process, and readers see that
        os.environ[VARIABLE] = str(
            Controller(pid=os.getpid(), fd=read, inode=os.fstat(read).st_ino)
        )


class Cold(Exception):
    """Ranks cannot be forked here; the message says why."""


class WarmRanks:
    """Ranks that a keeper has forked, with what `run_ranks` uses of `subprocess.Popen`.

    Attributes:
        pid: keeper of the ranks, which leads their session and process group.
        stdout: what the ranks print.
        used: resources of the ranks, once they have ended.
    """

    def __init__(self, line: socket.socket, pid: int, output: int) -> None:
        self._line, self.pid = line, pid
        self.stdout: io.TextIOBase = open(output, errors="replace")  # noqa: SIM115, a descriptor
        self.returncode: int | None = None
        self.used: WarmAnswer | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the keeper's end; return the exit code of a single rank, or 1 if one of several failed.

        Raises:
            subprocess.TimeoutExpired: the ranks still run.
        """
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("warm ranks", timeout or 0.0)
            self.returncode = -9  # unless the keeper says otherwise
            with suppress(OSError, msgspec.MsgspecError):
                body, _ = receive(self._line)
                self.used = msgspec.json.decode(body, type=WarmAnswer) if body else None
            if self.used and self.used.code is not None:
                self.returncode = self.used.code
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM to the ranks."""
        with suppress(OSError):
            self._line.sendall(TERMINATE)


def start_warm(
    args: Sequence[str], *, module: str, env: Mapping[str, str], ranks: int, run_id: str, grace_s: float,
    package: str = PYTORCH_LIGHTNING, output: int | None = None, pass_fds: Sequence[int] = (),
    cores: Collection[int] = (), modules: Sequence[str] = (),
) -> WarmRanks:  # fmt: skip
    """Fork ranks from the server of this environment; the first job starts the server.

    Args:
        args: arguments of the ranks' program.
        module: the program, as after `python -m`.
        env: environment of the ranks, without the place of each.
        run_id: ID of the rendezvous of several ranks.
        grace_s: seconds between SIGTERM and SIGKILL of the remaining ranks.
        package: package of Lightning that the ranks load.
        output: descriptor that the ranks print to, instead of `WarmRanks.stdout`; their input is then empty.
        pass_fds: descriptors that the ranks inherit, such as locks.
        cores: numbers of the cores to run on; empty for those of this process.
        modules: what the server imports, for tests.

    Raises:
        Cold: the ranks must be started as usual.
    """
    controller = _controller()
    own = {name: value for name, value in env.items() if name not in _OF_LAUNCHERS}
    key = key_of(own, package)
    request = WarmRequest(
        key=key, module=module, args=[*args], env=spelled(own), cwd=os.getcwd(), umask=_umask(),  # noqa: PTH109
        cpus=sorted(cores or os.sched_getaffinity(0)), ranks=ranks, run_id=run_id, grace_s=grace_s,
    )  # fmt: skip
    settings = {"key": key, "package": package, "controller": str(controller)}
    if modules:
        settings |= {"modules": [*modules]}  # type: ignore[dict-item]
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    streams = [0, write, write] if output is None else [nothing, output, output]
    try:
        for slot in range(_SLOTS):
            line = _connect(controller, slot, settings, own)
            answer = _ask(line, request, [*streams, *pass_fds])
            if answer.keeper:
                return WarmRanks(line, answer.keeper, read)
            line.close()
            if not answer.is_other:
                raise Cold(answer.cold)
        raise Cold(f"{_SLOTS} servers of other environments run already")
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
        os.close(nothing)


def key_of(env: Mapping[str, str], package: str) -> str:
    """Return the digest of all that decides what a server is after its imports, and what it may do.

    Args:
        env: environment of the ranks. Libraries read variables while they are loaded, so each environment has a
            server of its own.
    """
    kept, _ = without_place(env)
    limits = [
        resource.getrlimit(number)
        for name, number in sorted(vars(resource).items())
        if name.startswith("RLIMIT_")
    ]
    return digest(
        {
            "python": [sys.executable, sys.version, sys.prefix],
            "lightning": package,
            "folder": os.getcwd(),  # noqa: PTH109
            "env": {name: value for name, value in kept.items() if name not in OF_JOBS},
            "user": [os.getuid(), os.geteuid(), os.getegid(), *os.getgroups()],
            "limits": limits,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "spaces": _spaces("self"),
            "cgroup": Path("/proc/self/cgroup").read_text(),
        }
    )


def _controller() -> Controller:
    controller = Controller.read(os.environ.get(VARIABLE, ""))
    if controller is None or sys.platform != "linux":
        raise Cold("this job was not started by a Snakemake process of this machine")
    try:
        os.close(controller.open_pipe())
        if _spaces(str(controller.pid)) != _spaces("self"):
            raise Cold("this job is in a container")
    except OSError:
        raise Cold("Snakemake's process has ended, or is out of sight") from None
    return controller


def _spaces(pid: str) -> list[str]:
    return [str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in _SPACES]


def _umask() -> int:
    found = re.search(r"^Umask:\s*(\d+)$", Path("/proc/self/status").read_text(), re.M)
    return int(found[1], 8) if found else 0o022


def _connect(
    controller: Controller, slot: int, settings: Mapping[str, object], env: Mapping[str, str]
) -> socket.socket:
    """Connect to the server in a slot, and start it if there is none."""
    # an abstract name ends with its server; the inode keeps another Snakemake with this pid apart
    name = f"\0shardline-{os.geteuid()}-{controller.pid}-{controller.inode}-{slot}"
    door = socket.socket(socket.AF_UNIX)
    try:
        door.bind(
            name
        )  # only one job can; connections wait until the server has imported everything
    except OSError:
        door.close()
    else:
        with door:
            door.listen(64)
            _start_server(door, settings, env)
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(_IMPORTS_S)
        line.connect(name)
    except OSError as error:
        line.close()
        raise Cold(f"the server cannot be reached ({error.strerror or error})") from None
    return line


def _start_server(
    door: socket.socket, settings: Mapping[str, object], env: Mapping[str, str]
) -> None:
    kept, _ = without_place(env)
    subprocess.run(
        [sys.executable, "-m", _SERVER, str(door.fileno()), json.dumps(settings)],
        # OpenBLAS starts its threads when it is loaded; each rank sets its own number
        env={**kept, "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=(door.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def _ask(line: socket.socket, request: WarmRequest, fds: list[int]) -> WarmAnswer:
    try:
        if not is_own(line):
            raise Cold("another user's process has the server's name")
        send(line, request, fds)
        body, _ = receive(line)
        line.settimeout(None)
        if body:
            return msgspec.json.decode(body, type=WarmAnswer)
        raise Cold("the server has ended")
    except TimeoutError:
        raise Cold(f"the server has not imported everything within {_IMPORTS_S:g} s") from None
    except (OSError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise Cold(f"the server cannot be asked ({error})") from None
