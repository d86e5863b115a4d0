"""Launches: one command on every process, prepared on all, started on all, ended with the first failure."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from snakemake_executor_plugin_azureml.node.child_process import describe_code
from snakemake_executor_plugin_azureml.node.wire import Connection, Document, LostError

if TYPE_CHECKING:
    from snakemake_executor_plugin_azureml.node.hub import Hub

_LEADER = 0  # the leader's command is a child of the launch itself, with the rule's environment


@dataclass
class Member:
    """One of the job's processes.

    Attributes:
        lost: how its connection was lost; empty while it is connected.
        connection: None for the leader itself.
    """

    rank: int
    node: int
    local_rank: int
    host: str
    pid: int
    connection: Connection | None = None
    address: str = ""
    lost: str = ""

    def __str__(self) -> str:
        at = f", {self.address}" if self.address not in ("", self.host) else ""
        return f"rank {self.rank} (node {self.node}, host {self.host}{at})"


@dataclass(eq=False)
class Launch:
    """A launch that is queued or running.

    Attributes:
        client: connection to the process in the rule; None once that process has ended.
        waiting: ranks that have not prepared the launch yet, or, while it runs, have not ended.
        failure: description of the first process that failed, and its exit code.
    """

    number: int
    client: Connection | None
    request: Document
    payload: bytes
    waiting: set[int] = field(default_factory=set)
    is_running: bool = False
    failure: tuple[str, int] | None = None

    def send(self, document: Document) -> None:
        """Send a message to the process in the rule."""
        try:
            if self.client is not None:
                self.client.send(document)
        except LostError:
            pass  # the loss is noticed when the connection is read


class Launches:
    """The launches of a job, which run one after the other."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._queue: deque[Launch] = deque()
        self._current: Launch | None = None
        self._count = 0

    def add(self, client: Connection, document: Document, payload: bytes) -> None:
        """Queue a launch; it starts when the launches before it have ended."""
        self._count += 1
        launch = Launch(self._count, client, document, payload)
        self._hub.listen_to(client, partial(self._receive_from_client, launch))
        self._queue.append(launch)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._current is None and self._queue:
            launch = self._current = self._queue.popleft()
            if lost := [member for member in self._hub.followers if member.lost]:
                self._refuse(launch, f"{lost[0]} is lost: {lost[0].lost}; see its log")
                continue
            launch.waiting = {member.rank for member in self._hub.followers}
            request = {**launch.request, "type": "prepare", "number": launch.number}
            for member in self._hub.followers:
                self._hub.send_to(member, request, launch.payload)

    def receive(self, member: Member, document: Document) -> None:
        """Handle a follower's message about the current launch."""
        launch = self._current
        if launch is None or document.get("number") != launch.number:
            return
        if document["type"] == "refused":
            self._refuse(launch, f"{member}: {document['reason']}")
        elif document["type"] == "ended":
            self._end(launch, member, int(document["code"]))
        elif document["type"] == "prepared":
            launch.waiting.discard(member.rank)
            if not launch.waiting:
                self._start(launch)

    def mark_lost(self, member: Member) -> None:
        """Handle the loss of a follower."""
        launch, reason = self._current, f"{member} is lost: {member.lost}; see its log"
        if launch is not None and not launch.is_running:
            self._refuse(launch, reason)
        elif launch is not None and member.rank in launch.waiting:
            self._fail(launch, reason, 1)
            self._mark_ended(launch, member.rank)

    def _start(self, launch: Launch) -> None:
        launch.is_running = True
        launch.waiting = {_LEADER, *(member.rank for member in self._hub.followers)}
        launch.send({"type": "start", "grace_s": self._hub.grace_s})
        self._send_to_waiting(launch, "start")

    def _send_to_waiting(self, launch: Launch, what: str) -> None:
        for member in self._hub.followers:
            if member.rank in launch.waiting:
                self._hub.send_to(member, {"type": what, "number": launch.number})

    def _end(self, launch: Launch, member: Member, code: int) -> None:
        if code:
            self._fail(launch, f"{member} {describe_code(code)}", code)
        self._mark_ended(launch, member.rank)

    def _fail(self, launch: Launch, reason: str, code: int) -> None:
        """Record the first failure, and end the other processes."""
        if launch.failure is None:
            launch.failure = reason, code
            launch.send({"type": "stop"})
            self._send_to_waiting(launch, "stop")

    def _mark_ended(self, launch: Launch, rank: int) -> None:
        launch.waiting.discard(rank)
        if not launch.waiting and self._current is launch:
            reason, code = launch.failure or ("", 0)
            self._close(launch, {"type": "done", "code": code, "reason": reason})

    def _refuse(self, launch: Launch, reason: str) -> None:
        """Reject a launch before any process has started."""
        if self._current is launch:
            self._close(launch, {"type": "refused", "reason": reason})

    def _close(self, launch: Launch, last: Document) -> None:
        launch.send(last)
        if launch.client is not None:
            self._hub.close_connection(launch.client)
        self._current = None
        self._begin_next()

    def _receive_from_client(self, launch: Launch) -> None:
        assert launch.client is not None
        try:
            messages = launch.client.receive()
        except (LostError, ValueError):
            self._drop_client(launch)
            return
        for document, _ in messages:
            if document["type"] == "ended":
                self._end(launch, self._hub.members[_LEADER], int(document["code"]))
            elif document["type"] == "stop":
                self._fail(launch, "the launch received a signal to stop", int(document["code"]))

    def _drop_client(self, launch: Launch) -> None:
        assert launch.client is not None
        self._hub.close_connection(launch.client)
        launch.client = None
        if launch in self._queue:
            self._queue.remove(launch)
        elif launch is self._current and not launch.is_running:
            self._close(launch, {})
        elif launch is self._current:
            self._fail(launch, "the launch was ended", 1)
            self._mark_ended(launch, _LEADER)
