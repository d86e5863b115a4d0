"""The leader's end of the lines to its followers, and of those to the launches of its job."""

import os
import selectors
import shutil
import socket
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.launches import Launches
from snakemake_executor_plugin_azureml.node.place import Place, is_loopback
from snakemake_executor_plugin_azureml.node.process import POLL_S, say
from snakemake_executor_plugin_azureml.node.wire import Connection, LostError, digest

_INTRODUCE_S = 10.0
_LEAVE_S = 10.0
_LONGEST_UNIX_PATH = 100
# Followers give up at the deadline, so the leader decides a little before and all hear why.
_DECIDE = 0.9


@dataclass
class Member:
    """One of the job's processes.

    Attributes:
        lost: what became of its line; empty while it is there.
        line: None for the leader itself.
    """

    rank: int
    node: int
    local_rank: int
    host: str
    pid: int
    line: Connection | None = None
    address: str = ""
    lost: str = ""

    def __str__(self) -> str:
        at = f", {self.address}" if self.address not in ("", self.host) else ""
        return f"rank {self.rank} (node {self.node}, host {self.host}{at})"


class Hub:
    """Keeps the lines; everything happens in `step`, on one thread."""

    def __init__(self, place: Place, *, wait_s: float, grace_s: float, silence_s: float) -> None:
        """Listen for followers and launches.

        Args:
            wait_s: seconds that the followers have to come.
            grace_s: seconds between asking the commands of a launch to end and ending them.
            silence_s: seconds after which a node that does not answer counts as gone.

        Raises:
            NodeError: all ports that follow from the job are taken.
        """
        self._place, self._wait_s = place, wait_s
        self.grace_s, self._silence_s = grace_s, silence_s
        host = socket.gethostname()
        me = Member(place.rank, place.node, place.local_rank, host, os.getpid())
        self.members = {place.rank: me}
        self.failure: tuple[str, int] | None = None  # of a follower's own command
        self.launches = Launches(self)
        self._strangers: dict[Connection, float] = {}
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._folder = _short_folder()
        self.control = str(self._folder / "launch")
        self._doors = [_listen(place.ports), _listen_locally(self.control)]
        for door in self._doors:
            self._selector.register(door, selectors.EVENT_READ, partial(self._open, door))

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

    def _open(self, door: socket.socket) -> None:
        with suppress(OSError):  # it may have gone again
            line = Connection(door.accept()[0], silence_s=self._silence_s)
            self._strangers[line] = time.monotonic() + _INTRODUCE_S
            self.listen_to(line, partial(self._meet, line, door is self._doors[0]))

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

    def _meet(self, line: Connection, is_network: bool) -> None:
        """Hear the first words of who opened a line."""
        try:
            messages = line.receive()
        except (LostError, ValueError):
            self._drop(line)
            return
        for document, payload in messages[:1]:
            self._strangers.pop(line, None)
            if not is_network:
                self.launches.ask(line, document, payload)
                continue
            try:
                self._admit(line, document)
            except (KeyError, TypeError, ValueError):  # no node program
                self._drop(line)

    def _admit(self, line: Connection, hello: dict[str, Any]) -> None:
        reason = ""
        known = self.members.get(int(hello["rank"]))
        if is_foreign := hello["job"] != digest(self._place.job.encode()):
            reason = "another job's leader listens there"
        elif hello["size"] != self._place.size:
            reason = (
                f"rank {hello['rank']} on {hello['host']} is one of {hello['size']} processes, but rank 0 on "
                f"{self.members[0].host} one of {self._place.size} ({self._place.origin}); see what has "
                "changed their variables"
            )
        elif known:
            reason = (
                f"two processes are rank {known.rank}: one on {known.host} (process {known.pid}) and one on "
                f"{hello['host']} (process {hello['pid']}); see what has changed their variables"
            )
        if reason:
            with suppress(LostError):
                line.send({"type": "refused", "foreign": is_foreign, "reason": reason})
            self.forget(line)
            if not is_foreign and not self.failure:
                self.failure = reason, 1
            return
        fields = {name: hello[name] for name in ("rank", "node", "local_rank", "host", "pid")}
        member = Member(**fields, line=line, address=line.peer)
        self.members[member.rank] = member
        if not is_loopback(line.here):
            self.members[0].address = line.here
        self.listen_to(line, partial(self._hear, member))
        self.tell(member, {"type": "welcome", "grace_s": self.grace_s})

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


def _short_folder() -> Path:
    """Make a folder for a socket, whose path may not be long."""
    folder = tempfile.gettempdir()
    if len(folder) > _LONGEST_UNIX_PATH - 40:
        folder = "/tmp"
    return Path(tempfile.mkdtemp(prefix="snakemake-azureml-", dir=folder))


def _listen_locally(path: str) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(path)
    door.listen()
    return door


def _listen(ports: tuple[int, ...]) -> socket.socket:
    for port in ports:
        try:
            return socket.create_server(("", port), backlog=1024)
        except OSError as error:
            say(
                f"port {port} cannot be used on {socket.gethostname()}: "
                f"{os.strerror(error.errno or 0)}; the next is tried"
            )
    raise NodeError(
        f"ports {', '.join(map(str, ports))} are all taken on {socket.gethostname()}; "
        "end what holds them (`ss -ltnp`)"
    )
