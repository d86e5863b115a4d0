"""Messages between a job, the server of its environment, and the keeper of its ranks."""

import os
import socket
import struct
from collections.abc import Mapping

import msgspec

_LENGTH = struct.Struct("=I")
_MAX_FDS = 64
TERMINATE = b"T"  # from the job to the keeper: end the ranks, as SIGTERM of a launcher does


class WarmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for ranks; the descriptors of their standard streams travel with it, then those to inherit.

    Attributes:
        key: digest of the environment, see `client.key_of`.
        module: program of a rank, as after `python -m`.
        args: arguments of the program.
        env: environment of a rank, without its place, as `spelled` returns it.
        cwd: working directory.
        umask: mask of new files.
        cpus: CPUs that the ranks may use.
        ranks: number of ranks.
        run_id: ID of the rendezvous of several ranks.
        grace_s: seconds between SIGTERM and SIGKILL of the remaining ranks.
    """

    key: str
    module: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    cpus: list[int]
    ranks: int
    run_id: str
    grace_s: float


def spelled(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as JSON can contain it: a character for each byte, since a value may be no UTF-8."""
    return {
        os.fsencode(k).decode("latin-1"): os.fsencode(v).decode("latin-1") for k, v in env.items()
    }


def unspelled(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that `spelled` was given."""
    return {
        os.fsdecode(k.encode("latin-1")): os.fsdecode(v.encode("latin-1")) for k, v in env.items()
    }


class WarmAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a request: first the keeper's process or a reason to start cold, at the end what the ranks used.

    Attributes:
        keeper: process that leads the ranks' process group.
        cold: why no rank was started.
        is_other: whether the server is that of another environment.
        is_old: whether the server ends, since files have changed.
        code: exit code; negative for a signal.
        cpu_s: CPU time of the ranks and their programs (wait4).
        peak_rss_bytes: memory of all ranks, each at its peak.
        read_bytes: bytes read from disks.
        written_bytes: bytes written to disks.
    """

    keeper: int = 0
    cold: str = ""
    is_other: bool = False
    is_old: bool = False
    code: int | None = None
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


def send(line: socket.socket, message: msgspec.Struct, fds: list[int] | None = None) -> None:
    """Send a message, with descriptors.

    Raises:
        OSError: the other side is gone.
    """
    body = msgspec.json.encode(message)
    socket.send_fds(line, [_LENGTH.pack(len(body))], fds or [])
    line.sendall(body)


def receive(line: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message as JSON, and its descriptors; empty bytes if the other side is gone.

    Raises:
        OSError: the other side is gone in the middle of a message, or too slow.
    """
    head, fds, _, _ = socket.recv_fds(line, _LENGTH.size, _MAX_FDS)
    if not head:
        return b"", []
    head += _exactly(line, _LENGTH.size - len(head))
    return _exactly(line, _LENGTH.unpack(head)[0]), fds


def _exactly(line: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        if not (part := line.recv(min(size, 1 << 20))):
            raise ConnectionResetError("the other side closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def is_own(line: socket.socket) -> bool:
    """Return whether this user's process is at the other side (SO_PEERCRED): abstract sockets have no mode."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """Snakemake's process, which holds both ends of a pipe: readers of the pipe see its end, SIGKILL included.

    Attributes:
        pid: the process.
        fd: its descriptor of the pipe's reading end.
        inode: number of the pipe, since another process may get the same pid.
    """

    pid: int
    fd: int
    inode: int

    @classmethod
    def read(cls, text: str) -> "Controller | None":
        """Return the controller that an environment variable names; None if the text names none."""
        try:
            pid, fd, inode = map(int, text.split(":"))
        except ValueError:
            return None
        return cls(pid=pid, fd=fd, inode=inode)

    def __str__(self) -> str:
        return f"{self.pid}:{self.fd}:{self.inode}"

    def open_pipe(self) -> int:
        """Return an own descriptor of the pipe.

        Raises:
            OSError: the process has ended.
        """
        descriptor = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDONLY | os.O_NONBLOCK)
        if os.fstat(descriptor).st_ino != self.inode:
            os.close(descriptor)
            raise ProcessLookupError(f"process {self.pid} has ended")
        return descriptor
