"""Messages over a socket: a JSON document each, bytes beside it, and over a network an HMAC.

The HMAC (RFC 2104, SHA-256) covers the message and its number on the line; each direction of each
line has a key of its own (`secret.py`). So a message that was changed, sent again, sent back or sent
by somebody without the job's secret ends the line. Nothing is encrypted, as little as what MPI,
NCCL or torch send between the nodes.
"""

import hashlib
import hmac
import json
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_HEAD = struct.Struct("!II")
_COUNT = struct.Struct("!Q")
_MAC_BYTES = 32
SMALL = 2**16  # bytes of a message before its sender is known, and of any from a follower
LARGEST_TEXT = 2**24  # of a launch's command and variables
LARGEST = 2**26 + LARGEST_TEXT + SMALL  # with its files
_CHUNK = 2**20

Message = tuple[dict[str, Any], bytes]


class LostError(Exception):
    """The other end is gone, or is no node program; the message says how."""


class Seal:
    """The HMACs of one direction of a line."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def next(self, message: bytes) -> bytes:
        """Return the HMAC of the next message."""
        mac = hmac.digest(self._key, _COUNT.pack(self._count) + message, "sha256")
        self._count += 1
        return mac


class Connection:
    """One end of a line between two processes of a job.

    Attributes:
        limit: bytes of the largest message that is received.
        sealed_in: of what is received; None for a line that cannot leave the machine.
        sealed_out: of what is sent.
    """

    def __init__(
        self,
        line: socket.socket,
        *,
        silence_s: float,
        limit: int = LARGEST,
        sealed_in: Seal | None = None,
        sealed_out: Seal | None = None,
    ) -> None:
        """Take over a connected socket.

        Args:
            silence_s: seconds after which an end that does not answer counts as gone, such
                as a machine without power.

        Raises:
            ValueError: a line over a network without a seal.
        """
        is_local = line.family == socket.AF_UNIX
        if not is_local and sealed_in is None:
            raise ValueError("a line over a network needs a seal")
        self._line, self._buffer = line, bytearray()
        self.limit, self.sealed_in, self.sealed_out = limit, sealed_in, sealed_out
        self._early: list[Message] = []
        line.settimeout(silence_s)
        if not is_local:
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
        message = _HEAD.pack(len(text), len(payload)) + text + payload
        if self.sealed_out is not None:
            message += self.sealed_out.next(message)
        try:
            self._line.sendall(message)
        except OSError as error:
            raise LostError(error.strerror or str(error)) from None

    def is_ready(self, timeout_s: float) -> bool:
        """Wait until there is something to receive; whether there is."""
        return bool(self._early or select.select([self._line], [], [], timeout_s)[0])

    def first(self, timeout_s: float) -> Message:
        """Wait for one message; what came along with it is received later.

        Raises:
            LostError: the other end is gone, or sent nothing.
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
            LostError: the other end is gone, or what it sent is no message of this job.
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
        size, more = _HEAD.unpack_from(self._buffer)
        if size + more > self.limit:
            raise LostError(f"a message of {size + more} bytes came, more than {self.limit}")
        end = _HEAD.size + size + more
        after = end + (_MAC_BYTES if self.sealed_in is not None else 0)
        if len(self._buffer) < after:
            return None
        message, mac = bytes(self._buffer[:end]), bytes(self._buffer[end:after])
        del self._buffer[:after]
        if self.sealed_in is not None and not hmac.compare_digest(
            mac, self.sealed_in.next(message)
        ):
            raise LostError("a message came whose HMAC is not of this job's secret")
        return _document(message[_HEAD.size : _HEAD.size + size]), message[_HEAD.size + size :]

    def close(self) -> None:
        """Let go of the line."""
        self._line.close()


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise LostError("a message came that is no document of a node program")
    return document


def receive_exactly(line: socket.socket, size: int, timeout_s: float) -> bytes:
    """Receive so many bytes, and none beyond them.

    Raises:
        LostError: they did not come in time.
        OSError: the other end is gone.
    """
    deadline, content = time.monotonic() + timeout_s, b""
    while len(content) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([line], [], [], left_s)[0]:
            raise LostError("another program holds this port, or a firewall swallows what is sent")
        if not (chunk := line.recv(size - len(content))):
            raise LostError("the connection was closed")
        content += chunk
    return content


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
