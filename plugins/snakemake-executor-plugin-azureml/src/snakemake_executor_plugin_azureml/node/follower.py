"""A follower, every rank but 0: joins the leader, runs launched commands, ends with the job's exit code."""

import os
import secrets
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from snakemake_executor_plugin_azureml.node.child_process import (
    POLL_S,
    Child,
    Stop,
    describe_code,
    in_shell,
    log,
)
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.job_environment import (
    NodeSettings,
    job_environment,
    with_own_mounts,
)
from snakemake_executor_plugin_azureml.node.place import Place
from snakemake_executor_plugin_azureml.node.secret import (
    GREETING_BYTES,
    NONCE_BYTES,
    folder_of,
    read_greeting,
)
from snakemake_executor_plugin_azureml.node.shared_files import below, write_files
from snakemake_executor_plugin_azureml.node.wire import (
    LARGEST,
    SMALL,
    Connection,
    Document,
    LostError,
    Seal,
    receive_exactly,
)

_ANSWER_S = 5.0
_RETRY_S = 0.2


class Follower:
    """A process that runs the commands of the leader's launches."""

    def __init__(
        self, place: Place, connection: Connection, mounts: Mapping[str, str], grace_s: float
    ) -> None:
        self._place, self._connection = place, connection
        self._mounts, self._leaders_mounts = mounts, dict[str, str]()
        self._grace_s = grace_s
        self._world: list[Document] = []
        self._prepared: Document = {}
        self._child: Child | None = None
        self._number = 0  # of the launch that runs
        self._side_child: Child | None = None

    def serve(self, command: str | None, stop: Stop) -> int:
        """Serve until the job ends, and return the job's exit code.

        Args:
            command: shell command that runs on this node beside all launches until the job ends.
        """
        try:
            while not stop.number:
                end = self._receive(command)
                if end is not None:
                    if end["reason"]:
                        log(f"the job has ended: {end['reason']}")
                    return int(end["code"])
                self._poll_children()
            reason = f"the process received a signal to stop (code {stop.code})"
            self._connection.send({"type": "leaving", "reason": reason})
            return stop.code
        except (LostError, ValueError) as error:
            if stop.number:
                return stop.code
            raise NodeError(
                f"the leader, rank 0, was lost before the job ended: {error}; see the log of rank 0"
            ) from None
        finally:
            self._end_children()

    def _receive(self, command: str | None) -> Document | None:
        if not self._connection.is_ready(POLL_S):
            return None
        for document, payload in self._connection.receive():
            kind = document["type"]
            if kind == "end":
                return document
            if kind == "begin":
                self._world, self._leaders_mounts = document["world"], document["mounts"]
                if command:
                    self._side_child = self._start(in_shell(command))
            elif kind == "prepare":
                self._prepare(document, payload)
            elif document["number"] == self._prepared.get("number"):
                self._start_or_stop(kind)
        return None

    def _prepare(self, document: Document, payload: bytes) -> None:
        answer = {"type": "prepared", "number": document["number"]}
        try:
            folder = below(document["folder"], Path.cwd())
            folder.mkdir(parents=True, exist_ok=True)
            write_files(document["files"], payload, folder)
            self._prepared = document
        except (NodeError, OSError) as error:
            answer |= {"type": "refused", "reason": str(error)}
        self._connection.send(answer)

    def _start_or_stop(self, kind: str) -> None:
        if kind == "stop" and self._child is not None:
            self._child.end()
        elif kind == "start":
            asked, self._number = self._prepared, self._prepared["number"]
            own = partial(with_own_mounts, leader=self._leaders_mounts, own=self._mounts)
            variables = {name: own(value) for name, value in asked["env"].items()}
            folder = below(asked["folder"], Path.cwd())
            self._child = self._start([*map(own, asked["command"])], variables, folder)

    def _start(
        self, command: list[str], variables: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Child:  # fmt: skip
        env = {**job_environment(self._world, self._place.rank, self._mounts), **(variables or {})}
        return Child(command, env=env, grace_s=self._grace_s, folder=folder)

    def _poll_children(self) -> None:
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._connection.send({"type": "ended", "number": self._number, "code": code})
        if self._side_child is not None and (code := self._side_child.poll()) is not None:
            self._side_child = None
            if code:
                reason = f"the follower command {describe_code(code)}"
                self._connection.send({"type": "failed", "code": code, "reason": reason})

    def _end_children(self) -> None:
        children = [child for child in (self._child, self._side_child) if child is not None]
        for child in children:
            child.end()
        for child in children:
            child.wait()


def follow(place: Place, command: str | None, settings: NodeSettings, stop: Stop) -> int:
    """Join the leader, serve, and return the job's exit code.

    Args:
        command: shell command that runs on this node until the job ends; None for none.

    Raises:
        NodeError: the leader is not found, rejects this process, or is lost.
    """
    if not place.addresses:
        raise NodeError(
            f"{place.origin}, but no MASTER_ADDR, AZ_BATCH_MASTER_NODE, MASTER_IP or AZ_BATCH_NODE_LIST names "
            "the node of rank 0; use azureml_distribution: pytorch, which always sets MASTER_ADDR"
        )
    found = _find_leader(place, settings, stop)
    if found is None:
        return stop.code
    connection, welcome = found
    log(f"rank {place.rank} (node {place.node}) joined the leader at {connection.peer_address}")
    return Follower(place, connection, settings.mounts, welcome["grace_s"]).serve(command, stop)


def _find_leader(
    place: Place, settings: NodeSettings, stop: Stop
) -> tuple[Connection, Document] | None:
    """Try every address and port until the leader answers; return None after a signal to stop."""
    folder, problems = folder_of(place, settings.mounts), dict[str, str]()
    deadline = time.monotonic() + settings.wait_s
    while not stop.number:
        for port in place.ports:
            for address in place.addresses:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    found = "; ".join(f"{where}: {what}" for where, what in problems.items())
                    raise NodeError(
                        f"rank {place.rank} (node {place.node}, host {socket.gethostname()}) did not reach the "
                        f"leader, rank 0, within {settings.wait_s:g} s ({found}); check in its log that rank 0 "
                        "started, open all ports between the nodes, or allow more time (azureml-node-wait-s)"
                    )
                try:
                    timeout_s = min(left_s, _ANSWER_S)
                    return _join(place, folder, (address, port), timeout_s, settings.silence_s)
                except (OSError, LostError, ValueError) as error:
                    problem = getattr(error, "strerror", None) or str(error) or "no answer"
                    problems[f"{address}:{port}"] = problem
        time.sleep(_RETRY_S)
    return None


def _join(
    place: Place, folder: Path, at: tuple[str, int], timeout_s: float, silence_s: float
) -> tuple[Connection, Document]:
    """Join the hub that listens at an address.

    Args:
        folder: folder of the job's secret.

    Raises:
        LostError: no process of this job listens at the address.
        OSError: nothing listens at the address.
        NodeError: the hub, which has proved its secret, rejects this process.
    """
    sock = socket.create_connection(at, timeout_s)
    try:
        secret, theirs = read_greeting(receive_exactly(sock, GREETING_BYTES, timeout_s), folder)
        mine = secrets.token_bytes(NONCE_BYTES)
        joined = Connection(
            sock, silence_s=silence_s, limit=SMALL,
            sealed_in=Seal(secret.derived("to follower", theirs, mine)),
            sealed_out=Seal(secret.derived("hello", theirs)),
        )  # fmt: skip
        joined.send(
            {
                "type": "hello",
                "nonce": mine.hex(),
                "size": place.size,
                "rank": place.rank,
                "node": place.node,
                "local_rank": place.local_rank,
                "host": socket.gethostname(),
                "pid": os.getpid(),
            }
        )
        joined.sealed_out = Seal(secret.derived("to hub", theirs, mine))
        answer = joined.receive_first(timeout_s)[0]
        if answer["type"] != "welcome":
            raise NodeError(answer["reason"])
        joined.limit = LARGEST
        return joined, answer
    except BaseException:
        sock.close()
        raise
