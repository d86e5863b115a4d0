"""The leader's end of the connections to its followers and to the launches of its job."""

import os
import secrets
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from snakemake_executor_plugin_azureml.node.child_process import POLL_S, log
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.job_environment import NodeSettings
from snakemake_executor_plugin_azureml.node.launches import Launches, Member
from snakemake_executor_plugin_azureml.node.place import Place, is_loopback
from snakemake_executor_plugin_azureml.node.secret import NONCE_BYTES, Secret
from snakemake_executor_plugin_azureml.node.wire import (
    SMALL,
    Connection,
    Document,
    LostError,
    Seal,
    listen,
    listen_locally,
    short_folder,
)

_FIRST_MESSAGE_S = 10.0
_LEAVE_S = 10.0
_MAX_PENDING = 64  # unknown senders at a time, in addition to all followers
_MAX_REPORTED = 10  # dropped connections in the log
# Followers give up at the deadline. The leader decides a little earlier and sends the reason to all.
_SHARE_OF_WAIT = 0.9


class Hub:
    """The leader's connections; `step` does all work, on one thread."""

    def __init__(self, place: Place, secret: Secret, settings: NodeSettings) -> None:
        """Listen for followers, which must know the secret, and for launches.

        Args:
            settings: settings whose `grace_s` applies to the commands of a launch.

        Raises:
            NodeError: all ports that follow from the job are taken.
        """
        self._place, self._secret, self._wait_s = place, secret, settings.wait_s
        self.grace_s, self._silence_s = settings.grace_s, settings.silence_s
        host = socket.gethostname()
        me = Member(place.rank, place.node, place.local_rank, host, os.getpid())
        self.members = {place.rank: me}
        self.failure: tuple[str, int] | None = None  # failure of a follower's own command
        self.launches = Launches(self)
        self._pending: dict[Connection, float] = {}
        self._num_dropped = 0
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._network_listener = listen(place)
        self._folder = short_folder()
        self.control = str(self._folder / "launch")
        local_listener = listen_locally(self.control)
        self._selector.register(self._network_listener, selectors.EVENT_READ, self._open_network)
        self._selector.register(
            local_listener, selectors.EVENT_READ, partial(self._open_local, local_listener)
        )

    def step(self, timeout_s: float) -> None:
        """Handle received messages, or wait for a message."""
        for key, _ in self._selector.select(timeout_s):
            key.data()
        for connection, limit in list(self._pending.items()):
            if time.monotonic() > limit:
                self._drop(connection)

    def is_incomplete(self) -> bool:
        """Whether a process has not joined yet."""
        return len(self.members) < self._place.size

    def close_network_listener(self) -> None:
        """Close the port, so that no further process can join."""
        self._selector.unregister(self._network_listener)
        self._network_listener.close()
        for connection in list(self._pending):
            self._drop(connection)

    def _open_network(self) -> None:
        with suppress(OSError):  # the client may be gone
            accepted, (address, *_) = self._network_listener.accept()
            nonce = secrets.token_bytes(NONCE_BYTES)
            connection = Connection(
                accepted, silence_s=self._silence_s, limit=SMALL,
                sealed_in=Seal(self._secret.derived("hello", nonce)),
            )  # fmt: skip
            self._await_first_message(
                connection, partial(self._receive_hello, connection, address, nonce)
            )
            accepted.sendall(self._secret.greeting(nonce))  # fits the buffer of a new socket
        while len(self._pending) > _MAX_PENDING + self._place.size:
            self._drop(next(iter(self._pending)))  # the oldest

    def _open_local(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection = Connection(listener.accept()[0], silence_s=self._silence_s)
            self._await_first_message(connection, partial(self._receive_launch, connection))

    def _await_first_message(self, connection: Connection, on_readable: Callable[[], None]) -> None:
        """Close a new connection if its first message does not arrive in time."""
        self._pending[connection] = time.monotonic() + _FIRST_MESSAGE_S
        self.listen_to(connection, on_readable)

    def listen_to(self, connection: Connection, on_readable: Any) -> None:
        """Call a function whenever a connection has something to read."""
        with suppress(KeyError):
            self._selector.unregister(connection)
        self._selector.register(connection, selectors.EVENT_READ, on_readable)

    def _drop(self, connection: Connection) -> None:
        self._pending.pop(connection, None)
        self.close_connection(connection)

    def close_connection(self, connection: Connection) -> None:
        """Close a connection."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()

    def _receive_launch(self, connection: Connection) -> None:
        with self._dropping(connection):
            for document, payload in connection.receive()[:1]:
                self._pending.pop(connection, None)
                self.launches.add(connection, document, payload)

    def _receive_hello(self, connection: Connection, address: str, nonce: bytes) -> None:
        """Read a connection's first message, which proves that the sender has the secret."""
        with self._dropping(connection, address):
            for hello, _ in connection.receive()[:1]:
                self._admit(connection, address, nonce, hello)

    @contextmanager
    def _dropping(self, connection: Connection, address: str = "") -> Iterator[None]:
        """Close a connection whose sender is not a node program of this job."""
        try:
            yield
        except (LostError, OSError, ValueError, KeyError, TypeError) as error:
            self._drop(connection)
            self._num_dropped += 1
            if address and self._num_dropped <= _MAX_REPORTED:
                log(f"a connection from {address} was closed: {error}")

    def _admit(self, connection: Connection, address: str, nonce: bytes, hello: Document) -> None:
        """Admit a follower, or send it the reason for the rejection."""
        nonces = nonce, bytes.fromhex(hello["nonce"])
        connection.sealed_in = Seal(self._secret.derived("to hub", *nonces))
        connection.sealed_out = Seal(self._secret.derived("to follower", *nonces))
        if reason := self._rejection_reason(hello):
            with suppress(LostError):
                connection.send({"type": "refused", "reason": reason})
            self._drop(connection)
            if hello["size"] == self._place.size and not self._has_rank(hello["rank"]):
                log(f"{reason}; the job continues without this process")
            else:
                self.failure = self.failure or (reason, 1)
            return
        fields = {name: hello[name] for name in ("rank", "node", "local_rank", "host", "pid")}
        member = Member(**fields, connection=connection, address=address)
        self.members[member.rank] = member
        if not is_loopback(connection.local_address):
            self.members[0].address = connection.local_address
        self._pending.pop(connection)
        self.listen_to(connection, partial(self._receive_from, member))
        self.send_to(member, {"type": "welcome", "grace_s": self.grace_s})

    def _has_rank(self, rank: Any) -> bool:
        return type(rank) is int and 0 <= rank < self._place.size

    def _rejection_reason(self, hello: Document) -> str:
        """Return why a follower cannot be one of the job's processes; empty if it can."""
        rank, size = hello["rank"], self._place.size
        if hello["size"] != size:
            return (
                f"rank {rank} on {hello['host']} is one of {hello['size']} processes, but rank 0 on "
                f"{self.members[0].host} is one of {size} ({self._place.origin}); find out what changed "
                "their variables"
            )
        if not self._has_rank(rank):
            return (
                f"a process on {hello['host']} (process {hello['pid']}) is rank {rank!r}, but the job has "
                f"ranks 0 to {size - 1}; find out what changed its variables"
            )
        if known := self.members.get(rank):
            return (
                f"two processes are rank {rank}: one on {known.host} (process {known.pid}) and one on "
                f"{hello['host']} (process {hello['pid']}); find out what changed their variables"
            )
        return ""

    def _receive_from(self, member: Member) -> None:
        assert member.connection is not None
        try:
            messages = member.connection.receive()
        except (LostError, ValueError) as error:
            self._mark_lost(member, str(error))
            return
        for document, _ in messages:
            if document["type"] == "leaving":
                self._mark_lost(member, document["reason"])
            elif document["type"] == "failed":
                reason = f"{member}: {document['reason']}"
                self.failure = self.failure or (reason, int(document["code"]))
            else:
                self.launches.receive(member, document)

    def _mark_lost(self, member: Member, how: str) -> None:
        if not member.lost:
            assert member.connection is not None
            member.lost = how
            if not self._is_closing:  # then processes are expected to leave
                log(f"{member} is lost: {how}; see its log")
            self.close_connection(member.connection)
            self.launches.mark_lost(member)

    def send_to(self, member: Member, document: Document, payload: bytes = b"") -> None:
        """Send a message to a follower; a follower that is gone is marked as lost."""
        if member.connection is None or member.lost:
            return
        try:
            member.connection.send(document, payload)
        except LostError as error:
            self._mark_lost(member, str(error))

    @property
    def followers(self) -> list[Member]:
        """All processes but the leader."""
        return [member for member in self.members.values() if member.connection is not None]

    def world(self) -> list[dict[str, int | str]]:
        """Return the processes by rank, with addresses at which the nodes reach each other."""
        leader = self.members[0]
        leader.address = leader.address or "127.0.0.1"
        members = sorted(self.members.values(), key=lambda member: member.rank)
        for member in members:
            if is_loopback(member.address):
                member.address = leader.address
        names = ("rank", "node", "host", "local_rank", "address")
        return [{name: getattr(member, name) for name in names} for member in members]

    def check_membership(self, since_s: float) -> None:
        """Check whether to wait on: not after the limit, nor for a process that joined and left.

        Args:
            since_s: seconds that the leader has waited.

        Raises:
            NodeError: the wait is over; the message names the missing ranks.
        """
        if gone := [member for member in self.followers if member.lost]:
            raise NodeError(f"{gone[0]} joined and left ({gone[0].lost}); see its log")
        if since_s > _SHARE_OF_WAIT * self._wait_s:
            raise NodeError(
                f"{self.describe_missing()} did not join within {self._wait_s:g} s; check in the job's "
                "logs that the node started, or allow more time (azureml-node-wait-s)"
            )

    def describe_missing(self) -> str:
        """Return the ranks that have not joined yet, with their nodes if known."""
        place, names = self._place, []
        for rank in sorted(set(range(place.size)) - set(self.members)):
            node = place.node_of(rank)
            names.append(f"rank {rank}" + ("" if node is None else f" (node {node})"))
        here = {member.address for member in self.followers} | set(place.addresses)
        silent = [address for address in place.node_list if address not in here]
        if silent and len(place.addresses) == 1:
            names[-1] += f", of host {' or '.join(silent)} by AZ_BATCH_NODE_LIST,"
        return ", ".join(names)

    def close(self, code: int, reason: str = "") -> None:
        """Send the job's end to all followers, and wait until they have left."""
        self._is_closing = True
        for member in self.followers:
            self.send_to(member, {"type": "end", "code": code, "reason": reason})
        limit = time.monotonic() + _LEAVE_S + self.grace_s
        while time.monotonic() < limit and any(not member.lost for member in self.followers):
            self.step(POLL_S)
        with closing(self._selector):
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
        shutil.rmtree(self._folder, ignore_errors=True)
