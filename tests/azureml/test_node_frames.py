"""Of what comes over a line of the node program, only true messages in their order are taken."""

import json
import socket
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_executor_plugin_azureml.node import launch as module
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.wire import LARGEST, SMALL, Connection, LostError, Seal

DEEP = b"[" * 20_000


def received(*pieces: bytes, seal: Seal | None, limit: int = LARGEST) -> list[dict]:
    """Return the messages that are taken from a stream before it ends or is given up."""
    ours, theirs = socket.socketpair()
    messages = []
    with ours, theirs:
        line = Connection(theirs, silence_s=5, sealed_in=seal, limit=limit)
        with suppress(LostError):
            for piece in pieces:
                ours.sendall(piece)
                messages += [document for document, _ in line.receive()]
    return messages


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_garbage_is_no_message(garbage, is_framed, size, more):
    if is_framed:
        size = min(size, len(garbage)) if more % 2 else size
        garbage = size.to_bytes(4, "big") + more.to_bytes(4, "big") + garbage
    pieces = [garbage] if garbage else []
    assert received(*pieces, seal=Seal(b"key"), limit=SMALL) == []
    for document in received(*pieces, seal=None):  # of the same machine, so without a seal
        assert isinstance(document["type"], str)


@pytest.mark.parametrize("text", [b"[]", b"7", b"{}", b'{"type": 1}', b"\xff", DEEP, b'{"type"'])
def test_what_is_no_document_ends_the_line(text):
    assert received(len(text).to_bytes(4, "big") + bytes(4) + text, seal=None) == []


def sealed_stream(key: bytes, count: int) -> list[bytes]:
    """Return messages 0, 1, ... as they go over a line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line, stream = Connection(ours, silence_s=5, sealed_out=Seal(key)), []
        for number in range(count):
            line.send({"type": "message", "number": number}, b"payload" * number)
            stream.append(theirs.recv(2**16))
        return stream


UP, DOWN = sealed_stream(b"up", 5), sealed_stream(b"down", 5)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=8),
    st.integers(0, 10_000), st.integers(0, 255),
)  # fmt: skip
def test_of_any_mixture_of_true_messages_only_a_true_beginning_is_taken(picks, at, flip):
    pieces = [bytearray((DOWN if is_down else UP)[number]) for is_down, number in picks]
    if pieces and flip:
        changed = pieces[at % len(pieces)]
        changed[at % len(changed)] ^= flip
    expected = 0
    while pieces[expected:] and UP[expected:] and pieces[expected] == UP[expected]:
        expected += 1
    found = received(*map(bytes, pieces), seal=Seal(b"up"))
    assert found == [{"type": "message", "number": n} for n in range(expected)]


def test_a_launch_that_no_process_could_receive_is_refused_at_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "LARGEST_TEXT", 200)
    monkeypatch.setenv(module.CONTROL, "nowhere")
    with pytest.raises(NodeError, match="more than 200; pass large values as a file"):
        module.launch(["echo", json.dumps("x" * 300)], files=[], names=[])
