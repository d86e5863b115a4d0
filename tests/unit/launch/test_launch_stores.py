"""Where the stores listen by which ranks meet."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
import torch.distributed.run
from torch.distributed.rendezvous import rendezvous

from shardline.core.world import World
from shardline.launch import stores
from shardline.launch.preflight.rendezvous import Rendezvous
from shardline.launch.stores import NarrowStore, narrow_stores
from tests.support.processes import free_port
from tests.support.workspace import REPOSITORY

WAIT = timedelta(seconds=10)


def listening(pid: int | None = None) -> set[tuple[str, int]]:
    """Return address and port of each listening socket of a process."""
    found = psutil.Process(pid).net_connections("tcp")
    return {
        (entry.laddr.ip, entry.laddr.port) for entry in found if entry.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
    ],
)  # fmt: skip
def test_a_store_listens_at_its_own_address_alone(host, expected):
    before = listening()
    options = {"is_master": True, "wait_for_workers": False, "timeout": WAIT}
    store = NarrowStore(host, 0, **options)
    assert [address for address, _ in listening() - before] == [expected]
    client = NarrowStore(host, store.port, timeout=WAIT)
    client.set("a", "b")
    assert store.get("a") == b"b"
    with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
        NarrowStore(host, store.port, **options)


def test_a_name_is_left_to_torch_since_other_nodes_may_know_it_by_another_address():
    assert stores._listen("n1", 0) is None


def test_the_meeting_and_the_process_group_listen_there(monkeypatch):
    monkeypatch.setattr(dist, "TCPStore", dist.TCPStore)  # to be set back
    module = sys.modules[rendezvous.__module__]
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)
    world = World(
        rank=0, local_rank=0, world_size=2, local_world_size=2, master_addr="127.0.0.1",
        master_port=free_port(), launcher="mpirun",
    )  # fmt: skip
    before = listening()
    preflight = Rendezvous(world, deadline=1e9)
    assert [address for address, _ in listening() - before] == ["127.0.0.1"]
    preflight.close(timeout_s=0)
    store = module._create_c10d_store("127.0.0.1", free_port(), 0, 1, WAIT)
    assert isinstance(store, NarrowStore)
    narrow_stores()  # once more is nothing


TELL = """
import os, psutil
for c in psutil.Process(os.getppid()).net_connections("tcp"):
    if c.status == psutil.CONN_LISTEN: print("open", c.laddr.ip)
print("master", os.environ["MASTER_ADDR"])
"""


def test_torchruns_agent_of_one_machine_is_on_loopback_alone_and_leaves_no_folder(tmp_path):
    (tmp_path / "tell.py").write_text(TELL)
    golden = (REPOSITORY / "tests/golden/launch/torchrun-node.txt").read_text().split()
    words = [word for word in golden[1:-3] if not word.startswith("--nproc")]
    command = [sys.executable, *words, "--nproc-per-node=1", str(Path(tmp_path, "tell.py"))]
    (scratch := tmp_path / "scratch").mkdir()
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, text=True, capture_output=True, check=True, env=env)
    assert set(done.stdout.splitlines()) == {"open 127.0.0.1", "master 127.0.0.1"}
    assert not [*scratch.glob("torchelastic_*")]


@pytest.mark.parametrize("code", [0, 3])
def test_torchruns_logs_are_removed_with_their_folder(code, tmp_path, monkeypatch):
    folders = []

    def run():
        folders.append(Path(sys.argv[1].removeprefix("--log-dir=")))
        assert folders[0].is_dir()
        assert sys.argv[2:] == ["--log-dir=mine", "program"]
        sys.exit(code)

    monkeypatch.setattr(torch.distributed.run, "main", run)
    monkeypatch.setattr(stores, "narrow_stores", lambda: None)
    monkeypatch.setattr(sys, "argv", ["stores", "--log-dir=mine", "program"])
    with pytest.raises(SystemExit):
        stores.main()
    assert not folders[0].exists()
