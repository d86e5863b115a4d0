"""The leader's sockets, and messages over a socket: a JSON document, bytes, and over a network an HMAC.

The HMAC (RFC 2104, SHA-256) covers the message and its number on the connection. Each direction of each
connection has its own key (`secret.py`). A message that was changed, repeated, reflected or sent without the
job's secret closes the connection. Nothing is encrypted; MPI, NCCL and torch do not encrypt between nodes either.

"""

import hmac
import ipaddress
import json
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_azureml.node.child_process import log
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.place import Place

_HEAD = struct.Struct("!II")
_COUNT = struct.Struct("!Q")
_MAC_BYTES = 32
SMALL = 2**16  # largest message of an unknown sender or a follower, bytes
LARGEST_TEXT = 2**24  # command and variables of a launch
LARGEST = 2**26 + LARGEST_TEXT + SMALL  # a launch with its files
_CHUNK = 2**20
_LONGEST_UNIX_PATH = 100

Document = dict[str, Any]  # the JSON document of a message
Message = tuple[Document, bytes]


class LostError(Exception):
    """The other end is gone, or is not a node program; the message contains the cause."""


class Seal:
    """The HMACs of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def next(self, message: bytes) -> bytes:
        """Return the HMAC of the next message."""
        mac = hmac.digest(self._key, _COUNT.pack(self._count) + message, "sha256")
        self._count += 1
        return mac


class Connection:
    """One end of a connection between two processes of a job.

    Attributes:
        limit: largest message that is received, bytes.
        sealed_in: HMACs of received messages; None for a connection within the machine.
        sealed_out: HMACs of sent messages.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        silence_s: float,
        limit: int = LARGEST,
        sealed_in: Seal | None = None,
        sealed_out: Seal | None = None,
    ) -> None:
        """Take over a connected socket.

        Args:
            silence_s: seconds after which a silent other end counts as gone, such as a machine
                without power.

        Raises:
            ValueError: a connection over a network without a seal.
        """
        is_local = sock.family == socket.AF_UNIX
        if not is_local and sealed_in is None:
            raise ValueError("a connection over a network needs a seal")
        self._socket, self._buffer = sock, bytearray()
        self.limit, self.sealed_in, self.sealed_out = limit, sealed_in, sealed_out
        self._early: list[Message] = []
        sock.settimeout(silence_s)
        if not is_local:
            _enable_keepalive(sock, silence_s)

    def fileno(self) -> int:
        """Return the file descriptor for a selector."""
        return self._socket.fileno()

    @property
    def peer_address(self) -> str:
        """Address of the other end."""
        return str(self._socket.getpeername()[0])

    @property
    def local_address(self) -> str:
        """Address of this end."""
        return str(self._socket.getsockname()[0])

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
            self._socket.sendall(message)
        except OSError as error:
            raise LostError(error.strerror or str(error)) from None

    def is_ready(self, timeout_s: float) -> bool:
        """Wait until a message can be received; return whether one can."""
        return bool(self._early or select.select([self._socket], [], [], timeout_s)[0])

    def receive_first(self, timeout_s: float) -> Message:
        """Wait for one message; further messages are received later.

        Raises:
            LostError: the other end is gone, or sent nothing.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_ready(max(0.0, deadline - time.monotonic())):
            if messages := self.receive():
                self._early = messages[1:]
                return messages[0]
        raise LostError("another program uses this port, or a firewall drops the traffic")

    def receive(self) -> list[Message]:
        """Read the available bytes once, and return the complete messages.

        Raises:
            LostError: the other end is gone, or its bytes are not a message of this job.
        """
        if early := self._early:
            self._early = []
            return early
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError as error:
            raise LostError(error.strerror or str(error)) from None
        if not chunk:
            raise LostError("the connection was closed")
        self._buffer += chunk
        messages = []
        while message := self._next_message():
            messages.append(message)
        return messages

    def _next_message(self) -> Message | None:
        if len(self._buffer) < _HEAD.size:
            return None
        size, more = _HEAD.unpack_from(self._buffer)
        if size + more > self.limit:
            raise LostError(
                f"a message of {size + more} bytes was received, more than {self.limit}"
            )
        end = _HEAD.size + size + more
        after = end + (_MAC_BYTES if self.sealed_in is not None else 0)
        if len(self._buffer) < after:
            return None
        message, mac = bytes(self._buffer[:end]), bytes(self._buffer[end:after])
        del self._buffer[:after]
        if self.sealed_in is not None and not hmac.compare_digest(
            mac, self.sealed_in.next(message)
        ):
            raise LostError("a message was received whose HMAC does not match this job's secret")
        return _document(message[_HEAD.size : _HEAD.size + size]), message[_HEAD.size + size :]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _document(text: bytes) -> Document:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise LostError("a message was received that is not a document of a node program")
    return document


def receive_exactly(sock: socket.socket, size: int, timeout_s: float) -> bytes:
    """Receive exactly this number of bytes.

    Raises:
        LostError: the bytes did not arrive in time.
        OSError: the other end is gone.
    """
    deadline, content = time.monotonic() + timeout_s, b""
    while len(content) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([sock], [], [], left_s)[0]:
            raise LostError("another program uses this port, or a firewall drops the traffic")
        if not (chunk := sock.recv(size - len(content))):
            raise LostError("the connection was closed")
        content += chunk
    return content


def _enable_keepalive(sock: socket.socket, silence_s: float) -> None:
    """Make the kernel send keepalive probes over an idle connection (tcp(7))."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    step = max(1, round(silence_s / 4))
    for name, value in (
        ("TCP_KEEPIDLE", step),
        ("TCP_KEEPINTVL", step),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", round(silence_s * 1000)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def short_folder() -> Path:
    """Create a folder for a socket, whose path must be short."""
    folder = tempfile.gettempdir()
    if len(folder) > _LONGEST_UNIX_PATH - 40:
        folder = "/tmp"
    return Path(tempfile.mkdtemp(prefix="snakemake-azureml-", dir=folder))


def listen_locally(path: str) -> socket.socket:
    """Listen for the launches of this node."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    return listener


def listen(place: Place) -> socket.socket:
    """Listen for followers, only on the address at which they look for the leader.

    Raises:
        NodeError: all ports that follow from the job are taken.
    """
    address = _own_address(place.addresses)
    for port in place.ports:
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=1024)
        except OSError as error:
            log(
                f"port {port} cannot be used on {socket.gethostname()}: "
                f"{os.strerror(error.errno or 0)}; trying the next port"
            )
    raise NodeError(
        f"ports {', '.join(map(str, place.ports))} are all taken on {socket.gethostname()}; "
        "stop the programs that use them (`ss -ltnp` lists them)"
    )


def _own_address(addresses: tuple[str, ...]) -> str:
    """Return the first address that belongs to this node; empty, for all interfaces, if only names are known.

    A name may mean another address on another node.
    """
    for address in addresses:
        with suppress(ValueError, OSError):
            version = ipaddress.ip_address(address).version
            with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6) as probe:
                probe.bind((address, 0))  # succeeds only for addresses of this node
                return address
    return ""
