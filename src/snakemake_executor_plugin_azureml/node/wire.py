"""Messages over a socket: a JSON document each, and bytes beside it.

Nothing is encrypted or kept secret, as little as what MPI, NCCL or torch send between
the nodes: all of them rely on the cluster's network being its own. What is checked is that
both ends speak of the same job.
"""

import hashlib
import json
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_HEAD = struct.Struct("!4sII")
_MAGIC = b"SAN1"
_LARGEST = 2**28
_CHUNK = 2**20

Message = tuple[dict[str, Any], bytes]


class LostError(Exception):
    """The other end is gone, or is no node program; the message says how."""


class Connection:
    """One end of a line between two processes of a job."""

    def __init__(self, line: socket.socket, *, silence_s: float) -> None:
        """Take over a connected socket.

        Args:
            silence_s: seconds after which an end that does not answer counts as gone, such
                as a machine without power.
        """
        self._line, self._buffer = line, bytearray()
        self._early: list[Message] = []
        line.settimeout(silence_s)
        if line.family != socket.AF_UNIX:
            _notice_silence(line, silence_s)

    def fileno(self) -> int:
        """Return what a selector waits on."""
        return self._line.fileno()

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return str(self._line.getpeername()[0])

    @property
    def here(self) -> str:
        """Address of this end."""
        return str(self._line.getsockname()[0])

    def send(self, document: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one message.

        Raises:
            LostError: the other end is gone.
        """
        text = json.dumps(document).encode()
        try:
            self._line.sendall(_HEAD.pack(_MAGIC, len(text), len(payload)) + text + payload)
        except OSError as error:
            raise LostError(error.strerror or str(error)) from None

    def is_ready(self, timeout_s: float) -> bool:
        """Wait until there is something to receive; whether there is."""
        return bool(self._early or select.select([self._line], [], [], timeout_s)[0])

    def first(self, timeout_s: float) -> Message:
        """Wait for one message; what came along with it is received later.

        Raises:
            LostError: the other end is gone, or said nothing.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_ready(max(0.0, deadline - time.monotonic())):
            if messages := self.receive():
                self._early = messages[1:]
                return messages[0]
        raise LostError("another program holds this port, or a firewall swallows what is sent")

    def receive(self) -> list[Message]:
        """Read what has come, once, and return the messages that are whole.

        Raises:
            LostError: the other end is gone; all that it sent has been returned before.
        """
        if early := self._early:
            self._early = []
            return early
        try:
            chunk = self._line.recv(_CHUNK)
        except OSError as error:
            raise LostError(error.strerror or str(error)) from None
        if not chunk:
            raise LostError("the connection was closed")
        self._buffer += chunk
        messages = []
        while message := self._take():
            messages.append(message)
        return messages

    def _take(self) -> Message | None:
        if len(self._buffer) < _HEAD.size:
            return None
        magic, size, more = _HEAD.unpack_from(self._buffer)
        if magic != _MAGIC or size + more > _LARGEST:
            raise LostError("another program speaks there")
        end = _HEAD.size + size + more
        if len(self._buffer) < end:
            return None
        text, payload = self._buffer[_HEAD.size : end - more], bytes(self._buffer[end - more : end])
        del self._buffer[:end]
        return json.loads(text), payload

    def close(self) -> None:
        """Let go of the line."""
        self._line.close()


def _notice_silence(line: socket.socket, silence_s: float) -> None:
    """Have the kernel ask an idle other end for a sign of life (tcp(7))."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    step = max(1, round(silence_s / 4))
    for name, value in (
        ("TCP_KEEPIDLE", step),
        ("TCP_KEEPINTVL", step),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", round(silence_s * 1000)),
    ):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()
