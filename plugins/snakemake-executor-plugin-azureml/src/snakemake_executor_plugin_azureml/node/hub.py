"""The leader's end of the lines to its followers, and of those to the launches of its job."""

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

from snakemake_executor_plugin_azureml.node.doors import listen, listen_locally, short_folder
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.launches import Launches
from snakemake_executor_plugin_azureml.node.member import Member
from snakemake_executor_plugin_azureml.node.place import Place, is_loopback
from snakemake_executor_plugin_azureml.node.process import POLL_S, say
from snakemake_executor_plugin_azureml.node.secret import NONCE_BYTES, Secret
from snakemake_executor_plugin_azureml.node.wire import SMALL, Connection, LostError, Seal

_INTRODUCE_S = 10.0
_LEAVE_S = 10.0
_STRANGERS = 64  # lines from unknown senders at a time, beside those of all followers
_NUM_NAMED = 10  # strangers in the log
# Followers give up at the deadline, so the leader decides a little before and all hear why.
_DECIDE = 0.9


class Hub:
    """Keeps the lines; everything happens in `step`, on one thread."""

    def __init__(
        self, place: Place, secret: Secret, *, wait_s: float, grace_s: float, silence_s: float
    ) -> None:
        """Listen for followers and launches.

        Args:
            secret: what followers must have read.
            wait_s: seconds that the followers have to come.
            grace_s: seconds between asking the commands of a launch to end and ending them.
            silence_s: seconds after which a node that does not answer counts as gone.

        Raises:
            NodeError: all ports that follow from the job are taken.
        """
        self._place, self._secret, self._wait_s = place, secret, wait_s
        self.grace_s, self._silence_s = grace_s, silence_s
        host = socket.gethostname()
        me = Member(place.rank, place.node, place.local_rank, host, os.getpid())
        self.members = {place.rank: me}
        self.failure: tuple[str, int] | None = None  # of a follower's own command
        self.launches = Launches(self)
        self._strangers: dict[Connection, float] = {}
        self._num_dropped = 0
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._network_door = listen(place)
        self._folder = short_folder()
        self.control = str(self._folder / "launch")
        local_door = listen_locally(self.control)
        self._selector.register(self._network_door, selectors.EVENT_READ, self._open_network)
        self._selector.register(
            local_door, selectors.EVENT_READ, partial(self._open_local, local_door)
        )

    def step(self, timeout_s: float) -> None:
        """Hear what has come, or wait for it."""
        for key, _ in self._selector.select(timeout_s):
            key.data()
        for line, limit in list(self._strangers.items()):
            if time.monotonic() > limit:
                self._drop(line)

    def is_missing_any(self) -> bool:
        """Whether a process has not come yet."""
        return len(self.members) < self._place.size

    def close_network_door(self) -> None:
        """Let nobody else join; no port of this process is open any more."""
        self._selector.unregister(self._network_door)
        self._network_door.close()
        for line in list(self._strangers):
            self._drop(line)

    def _open_network(self) -> None:
        with suppress(OSError):  # it may have gone again
            accepted, (address, *_) = self._network_door.accept()
            nonce = secrets.token_bytes(NONCE_BYTES)
            line = Connection(
                accepted, silence_s=self._silence_s, limit=SMALL,
                sealed_in=Seal(self._secret.derived("hello", nonce)),
            )  # fmt: skip
            self._expect(line, partial(self._meet, line, address, nonce))
            accepted.sendall(self._secret.greeting(nonce))  # into the buffer of a new socket
        while len(self._strangers) > _STRANGERS + self._place.size:
            self._drop(next(iter(self._strangers)))  # the oldest

    def _open_local(self, door: socket.socket) -> None:
        with suppress(OSError):
            line = Connection(door.accept()[0], silence_s=self._silence_s)
            self._expect(line, partial(self._meet_launch, line))

    def _expect(self, line: Connection, meet: Callable[[], None]) -> None:
        """Give whoever opened a line some time for a first message."""
        self._strangers[line] = time.monotonic() + _INTRODUCE_S
        self.listen_to(line, meet)

    def listen_to(self, line: Connection, hear: Any) -> None:
        """Call a function whenever something comes over a line."""
        with suppress(KeyError):
            self._selector.unregister(line)
        self._selector.register(line, selectors.EVENT_READ, hear)

    def _drop(self, line: Connection) -> None:
        self._strangers.pop(line, None)
        self.forget(line)

    def forget(self, line: Connection) -> None:
        """Close a line."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(line)
        line.close()

    def _meet_launch(self, line: Connection) -> None:
        with self._dropping(line):
            for document, payload in line.receive()[:1]:
                self._strangers.pop(line, None)
                self.launches.ask(line, document, payload)

    def _meet(self, line: Connection, address: str, nonce: bytes) -> None:
        """Read the first message of a line, which proves that its sender has the secret."""
        with self._dropping(line, address):
            for hello, _ in line.receive()[:1]:
                self._admit(line, address, nonce, hello)

    @contextmanager
    def _dropping(self, line: Connection, address: str = "") -> Iterator[None]:
        """Close a line over which something else came than a node program sends."""
        try:
            yield
        except (LostError, OSError, ValueError, KeyError, TypeError) as error:
            self._drop(line)
            self._num_dropped += 1
            if address and self._num_dropped <= _NUM_NAMED:
                say(f"a connection from {address} was closed: {error}")

    def _admit(self, line: Connection, address: str, nonce: bytes, hello: dict[str, Any]) -> None:
        """Admit a follower, or tell it why not."""
        nonces = nonce, bytes.fromhex(hello["nonce"])
        line.sealed_in = Seal(self._secret.derived("to hub", *nonces))
        line.sealed_out = Seal(self._secret.derived("to follower", *nonces))
        if reason := self._refusal(hello):
            with suppress(LostError):
                line.send({"type": "refused", "reason": reason})
            self._drop(line)
            if hello["size"] == self._place.size and not self._has_rank(hello["rank"]):
                say(f"{reason}; the job goes on without it")
            else:
                self.failure = self.failure or (reason, 1)
            return
        fields = {name: hello[name] for name in ("rank", "node", "local_rank", "host", "pid")}
        member = Member(**fields, line=line, address=address)
        self.members[member.rank] = member
        if not is_loopback(line.here):
            self.members[0].address = line.here
        self._strangers.pop(line)
        self.listen_to(line, partial(self._hear, member))
        self.tell(member, {"type": "welcome", "grace_s": self.grace_s})

    def _has_rank(self, rank: Any) -> bool:
        return type(rank) is int and 0 <= rank < self._place.size

    def _refusal(self, hello: dict[str, Any]) -> str:
        """Return why a follower cannot be one of the job's processes; empty if it can."""
        rank, size = hello["rank"], self._place.size
        if hello["size"] != size:
            return (
                f"rank {rank} on {hello['host']} is one of {hello['size']} processes, but rank 0 on "
                f"{self.members[0].host} one of {size} ({self._place.origin}); see what has "
                "changed their variables"
            )
        if not self._has_rank(rank):
            return (
                f"a process on {hello['host']} (process {hello['pid']}) is rank {rank!r}, but the job has "
                f"ranks 0 to {size - 1}; see what has changed its variables"
            )
        if known := self.members.get(rank):
            return (
                f"two processes are rank {rank}: one on {known.host} (process {known.pid}) and one on "
                f"{hello['host']} (process {hello['pid']}); see what has changed their variables"
            )
        return ""

    def _hear(self, member: Member) -> None:
        assert member.line is not None
        try:
            messages = member.line.receive()
        except (LostError, ValueError) as error:
            self._lose(member, str(error))
            return
        for document, _ in messages:
            if document["type"] == "leaving":
                self._lose(member, document["reason"])
            elif document["type"] == "failed":
                reason = f"{member}: {document['reason']}"
                self.failure = self.failure or (reason, int(document["code"]))
            else:
                self.launches.hear(member, document)

    def _lose(self, member: Member, how: str) -> None:
        if not member.lost:
            assert member.line is not None
            member.lost = how
            if not self._is_closing:  # then to leave is right
                say(f"{member} is lost: {how}; see its log")
            self.forget(member.line)
            self.launches.lose(member)

    def tell(self, member: Member, document: dict[str, Any], payload: bytes = b"") -> None:
        """Send something to a follower; one that is gone is found out."""
        if member.line is None or member.lost:
            return
        try:
            member.line.send(document, payload)
        except LostError as error:
            self._lose(member, str(error))

    @property
    def followers(self) -> list[Member]:
        """All but the leader."""
        return [member for member in self.members.values() if member.line is not None]

    def world(self) -> list[dict[str, Any]]:
        """Return who is there, by rank, with addresses at which the nodes reach one another."""
        leader = self.members[0]
        leader.address = leader.address or "127.0.0.1"
        members = sorted(self.members.values(), key=lambda member: member.rank)
        for member in members:
            if is_loopback(member.address):
                member.address = leader.address
        names = ("rank", "node", "host", "local_rank", "address")
        return [{name: getattr(member, name) for name in names} for member in members]

    def check_all_came(self, since_s: float) -> None:
        """Refuse to wait longer than agreed, or for one that came and went.

        Args:
            since_s: seconds that the leader has waited.

        Raises:
            NodeError: names who is missing.
        """
        if gone := [member for member in self.followers if member.lost]:
            raise NodeError(f"{gone[0]} came and went ({gone[0].lost}); see its log")
        if since_s > _DECIDE * self._wait_s:
            raise NodeError(
                f"{self.missing()} did not come within {self._wait_s:g} s; see whether that node "
                "started (its log in the job's outputs), or allow more time (azureml-node-wait-s)"
            )

    def missing(self) -> str:
        """Name who has not come yet, and where that is as far as it is known."""
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
        """Tell all that the job has ended, and wait until they have heard."""
        self._is_closing = True
        for member in self.followers:
            self.tell(member, {"type": "end", "code": code, "reason": reason})
        limit = time.monotonic() + _LEAVE_S + self.grace_s
        while time.monotonic() < limit and any(not member.lost for member in self.followers):
            self.step(POLL_S)
        with closing(self._selector):
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
        shutil.rmtree(self._folder, ignore_errors=True)
