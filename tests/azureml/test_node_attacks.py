"""The node program among peers that do not have the job's secret: nothing runs, nothing hangs, the job goes on."""

import os
import socket
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_azureml.node import hub as hub_module
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.follower import Follower, _join, follow
from snakemake_executor_plugin_azureml.node.hub import Hub
from snakemake_executor_plugin_azureml.node.job_environment import NodeSettings
from snakemake_executor_plugin_azureml.node.place import Place, find_place
from snakemake_executor_plugin_azureml.node.secret import (
    GREETING_BYTES,
    Secret,
    folder_of,
    make_secret,
    read_greeting,
    remove_secrets,
)
from snakemake_executor_plugin_azureml.node.shared_files import below
from snakemake_executor_plugin_azureml.node.wire import (
    SMALL,
    Connection,
    LostError,
    Seal,
    listen,
    receive_exactly,
)

WORLD = [{"rank": 0, "address": "127.0.0.1"}, {"rank": 1, "address": "127.0.0.1"}]
PATIENCE_S = 20.0
SETTINGS = NodeSettings(mounts={}, wait_s=60, grace_s=1, silence_s=5)


def place_of(rank: int, job: str) -> Place:
    env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    return find_place({"AZUREML_RUN_ID": job, **{name: str(n) for name, n in env.items()}})


class Served:
    """A hub that another thread drives, and what a process of its job knows."""

    def __init__(self, mount: Path) -> None:
        self.place = place_of(0, uuid.uuid4().hex)
        self.folder = folder_of(self.place, {"STORE": str(mount)})
        self.secret = make_secret(self.folder)
        self.hub = Hub(self.place, self.secret, SETTINGS)
        self.at: tuple[str, int] = self.hub._network_listener.getsockname()
        self._is_over = threading.Event()
        self._reply: tuple[int, dict[str, object]] | None = None
        self._thread = threading.Thread(target=self._drive)
        self._thread.start()

    def _drive(self) -> None:
        while not self._is_over.is_set():
            self.hub.step(0.01)
            if self._reply and self._reply[0] in self.hub.members:
                rank, document = self._reply
                self._reply = None
                self.hub.send_to(self.hub.members[rank], document)

    def answer(self, rank: int, document: dict[str, object]) -> None:
        """Have a process be told something as soon as it has joined, by the hub's own thread."""
        self._reply = rank, document

    def join(self, **other: object) -> Connection:
        place = replace(place_of(1, self.place.job), **other)
        return _join(place, self.folder, self.at, PATIENCE_S, PATIENCE_S)[0]

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.hub.close_network_listener()
        for member in self.hub.followers:
            self.hub.close_connection(member.connection)
        self.hub.close(0)


@pytest.fixture
def served(tmp_path) -> Iterator[Served]:
    """A hub of two processes, of which a true follower can still join at the end."""
    served = Served(tmp_path)
    yield served
    try:
        if 1 not in served.hub.members:
            served.join().close()
        assert served.hub.failure is None
        assert sorted(served.hub.members) == [0, 1]
    finally:
        served.end()


def knock_with(at: tuple[str, int], *contents: bytes) -> bytes:
    """Send something after the greeting; return all that comes before the line is closed."""
    with socket.create_connection(at, PATIENCE_S) as line:
        received = receive_exactly(line, GREETING_BYTES, PATIENCE_S)
        with suppress(OSError):  # closed while it is sent
            for content in contents:
                line.sendall(content)
            line.shutdown(socket.SHUT_WR)
            while chunk := line.recv(2**16):
                received += chunk
        return received


@contextmanager
def recorded(at: tuple[str, int]) -> Iterator[tuple[tuple[str, int], dict[str, bytes]]]:
    """Yield the address of a relay to a hub, and what goes through it in both directions."""
    seen = {"up": b"", "down": b""}
    server = socket.create_server(("127.0.0.1", 0))

    def pump(way: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(2**16):
                seen[way] += chunk
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)

    def relay() -> None:
        with server.accept()[0] as near, socket.create_connection(at) as far:
            down = threading.Thread(target=pump, args=("down", far, near))
            down.start()
            pump("up", near, far)
            down.join()

    thread = threading.Thread(target=relay)
    thread.start()
    yield server.getsockname(), seen
    thread.join()
    server.close()


# The hub among strangers

DEEP = b"[" * 20_000
STRANGERS = {
    "HTTP": b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100,
    "zeros": bytes(2**17),
    "a huge frame": b"\xff" * 64,
    "a frame a byte too large": (SMALL + 1).to_bytes(4, "big") + bytes(2**17),
    "deep JSON": len(DEEP).to_bytes(4, "big") + bytes(4) + DEEP + bytes(32),
    "half a frame": b"\0\0\1",
}


@pytest.mark.parametrize("content", STRANGERS.values(), ids=STRANGERS)
def test_a_hub_answers_strangers_with_its_greeting_alone(served, content):
    assert len(knock_with(served.at, content)) == GREETING_BYTES


def test_a_hub_is_not_joined_with_another_secret(served, tmp_path):
    false = replace(served.secret, key=bytes(32))
    folder = tmp_path / "false"
    folder.mkdir()
    (folder / false.identifier).write_bytes(false.key)
    with pytest.raises(LostError, match=r"the connection was closed|reset by peer"):
        _join(place_of(1, served.place.job), folder, served.at, PATIENCE_S, PATIENCE_S)


def test_a_hub_is_not_joined_by_replay_or_reflection(served):
    with recorded(served.at) as (at, seen):
        _join(
            place_of(1, served.place.job), served.folder, at, PATIENCE_S, PATIENCE_S
        )[0].close()  # fmt: skip
    hello, welcome = seen["up"], seen["down"][GREETING_BYTES:]
    assert hello
    assert welcome
    del served.hub.members[1]  # the rank would be free
    for content in (hello, welcome, welcome + hello):
        assert len(knock_with(served.at, content)) == GREETING_BYTES


def test_a_flood_of_silent_lines_keeps_nobody_out(served, monkeypatch):
    monkeypatch.setattr(hub_module, "_MAX_PENDING", 8)
    lines = [socket.create_connection(served.at, PATIENCE_S) for _ in range(50)]
    served.join().close()
    assert len(served.hub._pending) <= 8 + 2
    for line in lines:
        line.close()


@pytest.mark.parametrize("rank", [-1, 2, 10**30, True, 1.0, float("nan"), "1", None, [1], {}])
def test_a_rank_that_the_job_does_not_have_is_refused(served, rank):
    with pytest.raises(NodeError, match=r"but the job has ranks 0 to 1; find out what changed"):
        served.join(rank=rank)


@pytest.mark.parametrize("nonce", ["", "00", "x" * 64, None, 7])
def test_a_hello_without_a_nonce_is_refused(served, nonce):
    with socket.create_connection(served.at, PATIENCE_S) as line:
        greeting = receive_exactly(line, GREETING_BYTES, PATIENCE_S)
        secret, theirs = read_greeting(greeting, served.folder)
        joined = Connection(
            line, silence_s=PATIENCE_S, sealed_in=Seal(b""),
            sealed_out=Seal(secret.derived("hello", theirs)),
        )  # fmt: skip
        joined.send({"type": "hello", "nonce": nonce, "rank": 1, "size": 2})
        with pytest.raises(LostError, match=r"was closed|reset by peer"):
            joined.receive_first(PATIENCE_S)


def test_a_follower_that_sends_more_than_it_may_is_lost_and_named(served):
    line = served.join()
    with suppress(LostError):
        line.send({"type": "ended", "number": 1}, bytes(SMALL))
        line.receive_first(PATIENCE_S)
    (member,) = served.hub.followers
    assert "more than 65536" in member.lost
    served.hub.members.pop(1)


def test_no_port_is_open_once_all_have_come(served):
    served.join().close()
    served.hub.close_network_listener()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(served.at, PATIENCE_S)
    served.hub._network_listener = listen(served.place)
    served.hub._selector.register(served.hub._network_listener, 1, lambda: None)


def test_the_leader_listens_at_the_narrowest_address():
    place = place_of(0, uuid.uuid4().hex)
    for addresses, expected in (
        (("127.0.0.1",), "127.0.0.1"),
        (("203.0.113.7", "127.0.0.2"), "127.0.0.2"),  # of a list of nodes its own
        (("some-name",), "0.0.0.0"),  # which may mean another address elsewhere
    ):
        with listen(replace(place, addresses=addresses)) as door:
            assert door.getsockname()[0] == expected


# A follower among strangers


class FalseHub:
    """Sends something to all that connect, at the first port where a follower looks."""

    def __init__(self, place: Place, *contents: bytes) -> None:
        self._door = socket.create_server(("127.0.0.1", place.ports[0]))
        self._contents = contents
        self.was_asked = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._door.accept()[0] as line, suppress(OSError):
                    self.was_asked.set()
                    for content in self._contents:
                        line.sendall(content)
                    while line.recv(2**16):
                        pass

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()


def frames(secret: Secret, marker: Path, *, purpose: str = "to follower") -> bytes:
    """Return what makes a follower run a command, sealed with some secret."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Connection(ours, silence_s=5, sealed_out=Seal(secret.derived(purpose, bytes(32))))
        folder = "../../../tmp"
        line.send({"type": "welcome", "grace_s": 1})
        line.send({"type": "begin", "world": WORLD, "mounts": {}})
        prepare = {"type": "prepare", "number": 1, "files": [], "env": {}, "folder": folder}
        line.send({**prepare, "command": ["touch", str(marker)]})
        line.send({"type": "start", "number": 1})
        return theirs.recv(2**16)


@pytest.mark.parametrize("kind", ["noise", "stranger", "thief of the greeting", "replay"])
def test_a_follower_obeys_no_false_leader(served, tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "marker"
    place = place_of(1, served.place.job)
    greeting = served.secret.greeting(bytes(32))
    contents = {
        "noise": [os.urandom(2**12)],
        "stranger": [Secret("ab" * 16, b"k").greeting(bytes(32)), frames(Secret("ab" * 16, b"k"), marker)],
        "thief of the greeting": [greeting, frames(Secret("ab" * 16, b"k"), marker)],
    }  # fmt: skip
    if kind == "replay":
        with recorded(served.at) as (at, seen):
            _join(place, served.folder, at, PATIENCE_S, PATIENCE_S)[0].close()
        contents[kind] = [seen["down"]]
        del served.hub.members[1]
    # the port before that of the true hub
    false_at = replace(place, ports=(served.at[1] + 1, served.at[1]))
    false = FalseHub(false_at, *contents[kind])
    stop, code = SimpleNamespace(number=0, code=143), []

    def run() -> None:
        mounts = {"STORE": str(tmp_path)}
        code.append(follow(false_at, None, replace(SETTINGS, mounts=mounts, wait_s=30), stop))

    served.answer(1, {"type": "end", "code": 7, "reason": ""})
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert false.was_asked.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
        assert code == [7], "it has gone on to the true one"
        assert not marker.exists()
    finally:
        stop.number = 15
        false.close()
        thread.join()


@pytest.mark.parametrize("folder", ["../../../tmp", "/tmp", "a/../..", "..", "out", "out/deeper"])
def test_a_follower_leaves_its_working_folder_for_nobody(tmp_path, monkeypatch, folder):
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (home / "out").symlink_to(outside)
    monkeypatch.chdir(home)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        near, far = Connection(ours, silence_s=5), Connection(theirs, silence_s=5)
        follower = Follower(place_of(1, "job"), far, {}, 1.0)
        prepare = {"type": "prepare", "number": 1, "files": [], "env": {}, "folder": folder}
        near.send({**prepare, "command": ["touch", str(outside / "marker")]})
        near.send({"type": "start", "number": 1})
        near.send({"type": "end", "code": 0, "reason": ""})
        assert follower.serve(None, SimpleNamespace(number=0, code=0)) == 0
        answer = near.receive_first(5)[0]
    assert answer["type"] == "refused"
    assert f"{folder} is not below {home}" in answer["reason"]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("path", ["..", "a/..", "/etc/passwd", "../x"])
def test_a_follower_writes_no_file_elsewhere(tmp_path, path):
    with pytest.raises(NodeError, match="is not below"):
        below(path, tmp_path, is_file=True)


# The secret


def test_each_direction_of_each_line_has_a_key_of_its_own():
    secret, nonces = Secret("ab" * 16, b"key"), (bytes(32), bytes(31) + b"1")
    keys = [
        secret.derived(purpose, *given)
        for purpose in ("hello", "to hub", "to follower")
        for given in (nonces, nonces[::-1], nonces[:1], nonces[1:])
    ]
    assert len({secret.key, *keys}) == 13


def test_a_secret_lies_in_a_file_of_its_own_and_nowhere_else(tmp_path):
    folder = folder_of(place_of(0, "job"), {"STORE": str(tmp_path)})
    first, second = make_secret(folder), make_secret(folder)
    (path,) = folder.iterdir()  # that of the earlier start is gone
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (path.name, path.read_bytes()) == (second.identifier, second.key)
    assert len({first.key, second.key, first.identifier, second.identifier}) == 4
    assert repr(second.key) not in repr(second)
    remove_secrets(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["missing", "short", "long", "link"])
def test_a_greeting_names_nothing_but_a_whole_secret(tmp_path, what):
    secret = make_secret(tmp_path / "job")
    path = tmp_path / "job" / secret.identifier
    (tmp_path / "other").write_bytes(secret.key)
    path.unlink()
    if what == "link":
        path.symlink_to(tmp_path / "other")
    elif what != "missing":
        path.write_bytes(secret.key[:-1] if what == "short" else secret.key + b"x")
    with pytest.raises(LostError, match=r"another job's leader|cannot be read"):
        read_greeting(secret.greeting(bytes(32)), tmp_path / "job")


def test_several_nodes_without_a_mount_are_refused():
    place = replace(place_of(0, "job"), per_node=1)
    with pytest.raises(NodeError, match="has several nodes and no mounted folder.*azureml-mounts"):
        folder_of(place, {})
