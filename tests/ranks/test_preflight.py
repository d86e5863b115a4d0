"""Ranks that join before training over loopback: real processes, real stores, real messages."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.support.forked import Program
from tests.support.processes import free_port, wait_until
from tests.support.rotation import rotating

# One rank: its world in argv, or from torchrun's variables. What the training does next,
# a process group of its own at the same port, must work at once.
RANK = """
import json, os, sys, psutil, torch
from dataclasses import asdict
from shardline.errors import LaunchError
from shardline.launch.preflight.preflight_check import run_preflight
from shardline.core.world import World

options = json.loads(sys.argv[1])
given = options.pop("world")
if given:
    print("READY", flush=True)
    sys.stdin.readline()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(given["master_port"]))
names = ("rank", "local_rank", "world_size", "local_world_size", "master_port")
fields = given or {name: int(os.environ[name.upper()]) for name in names}
world = World(master_addr="127.0.0.1", launcher="torchrun", **fields)
torch.set_num_threads(1)
try:
    found = run_preflight(world, backend="gloo", device="cpu", **options)
except LaunchError as error:
    print("ERROR", error, flush=True)
    sys.exit(error.exit_code)
listening = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
left = [torch.distributed.is_initialized(), len(listening)]
torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.world_size)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
found = json.dumps({"left": left, "found": asdict(found)})
print(f"FOUND {found}\\n", end="", flush=True)  # one write: ranks share torchrun's output
"""
TIMEOUT_S = 300


def is_open(port):
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def num_joined(port):
    """Return how many ranks have said in the store who they are."""
    if not is_open(port):
        return 0
    store = TCPStore("127.0.0.1", port, is_master=False)
    joined = PrefixStore("shardline/preflight/0", store)
    return len(joined.get("arrivals").splitlines()) if joined.check(["arrivals"]) else 0


def options(world=None, *, nodes=1, devices=2, timeout_s=30, oversubscribe=True, **describe):
    planned = {"nodes": nodes, "devices": devices}
    return json.dumps({
        "world": world, "planned": planned, "timeout_s": timeout_s,
        "oversubscribe": oversubscribe, "describe": {"threads": 1, **describe},
    })  # fmt: skip


def start(rank, port, *, size=2, per_node=None, hosts=(), env=None, **more):
    """Start a rank of a world of `size` ranks, `per_node` on each node."""
    per_node = per_node or size
    world = {
        "rank": rank, "local_rank": rank % per_node, "world_size": size,
        "local_world_size": per_node, "master_port": port, "hosts": hosts,
    }  # fmt: skip
    text = options(world, **{"nodes": size // per_node, "devices": per_node, **more})
    return Program(RANK, text, env=env or {})


def release(processes):
    """Let ranks begin at one time: importing torch takes seconds, and not the same for each."""
    for process in processes:
        assert process.stdout.readline() == "READY\n", process.stdout.read()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def outputs(processes):
    """Let all begin, wait for all and return their outputs."""
    release(processes)
    return ends(processes)


def ends(processes):
    """Wait for ranks that have begun and return their outputs."""
    return [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]


def error_of(output):
    """Return a rank's message: one line, and no traceback beside it."""
    assert "Traceback" not in output
    found = re.findall(r"^ERROR (.*)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return found[0]


def found_by(output):
    found = re.findall(r"^FOUND (.*)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return json.loads(found[0])


@pytest.mark.parametrize("size", [4, *rotating(2)])
def test_all_ranks_find_the_same_and_leave_nothing_open(size):
    port = free_port()
    texts = outputs([start(rank, port, size=size) for rank in range(size)])
    found = [found_by(text) for text in texts]
    assert all(one == {"left": [False, 0], "found": found[0]["found"]} for one in found)
    rows = found[0]["found"]["ranks"]
    assert [row["rank"] for row in rows] == list(range(size))
    for row in rows:
        assert row["host"] == socket.gethostname()
        assert (row["interface"], row["address"]) == ("lo", "127.0.0.1")
        assert min(row["latency_us"], row["bandwidth_mb_s"], row["joined_s"]) > 0
    assert ["local  device" in text for text in texts] == [True] + [False] * (size - 1)


def test_settings_of_the_network_are_those_of_each_rank():
    port = free_port()
    env = {"NCCL_SOCKET_IFNAME": "ib0"}
    texts = outputs([start(0, port), start(1, port, env=env)])
    rows = found_by(texts[0])["found"]["ranks"]
    assert [row["settings"].get("NCCL_SOCKET_IFNAME") for row in rows] == [None, "ib0"]
    assert "rank 1: NCCL_SOCKET_IFNAME=ib0" in texts[0]


@pytest.mark.parametrize(
    ("hosts", "named"), [(("a", "b"), "host b"), *rotating(((), "unknown host"))]
)
def test_missing_ranks_are_named_with_their_host_on_every_rank(hosts, named):
    port = free_port()
    ranks = [
        start(rank, port, size=4, per_node=2, hosts=hosts, timeout_s=5, nodes=2) for rank in (0, 1)
    ]
    texts = outputs(ranks)
    for text in texts:
        assert error_of(text).startswith(
            f"2 of 4 ranks did not join within rendezvous_timeout_s=5: ranks 2-3 (node 1, {named}); "
            "ranks 0-1 joined; "
        )
    assert f"still waiting for ranks 2-3 (node 1, {named})" in texts[0]
    assert [rank.returncode for rank in ranks] == [4, 4]


def test_a_rank_of_another_world_size_is_named():
    port = free_port()
    for text in outputs([start(0, port), start(1, port, size=4, devices=2)]):
        assert re.match(
            r"rank 1 on host \S+ \(pid \d+\) was started by torchrun into a world of 4 ranks, but "
            r"rank 0 on host \S+ \(pid \d+\) by torchrun into a world of 2; ",
            error_of(text),
        )


@pytest.mark.parametrize("twice", [1, *rotating(0)])
def test_a_rank_that_is_there_twice_is_named_by_both_processes(twice):
    port = free_port()
    twins = [start(twice, port, size=3) for _ in range(2)]
    ranks = [*twins, *([] if twice == 0 else [start(0, port, size=3)])]
    for text in outputs(ranks):
        message = error_of(text)
        assert message.startswith(f"rank {twice} was claimed twice, by pid ")
        assert all(f"pid {twin.pid} on host {socket.gethostname()}" in message for twin in twins)


def test_a_rank_that_nobody_answers_names_address_port_and_interface():
    port = free_port()
    (text,) = outputs([start(1, port, timeout_s=3)])
    message = error_of(text)
    assert "cannot reach rank 0 (node 0, unknown host)" in message
    assert f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} over interface lo (127.0.0.1): " in message
    assert "Connection refused" in message
    assert "GLOO_SOCKET_IFNAME" in message


def test_a_port_that_another_program_holds_is_named():
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()  # and never answers: torch's own client would wait for it without end
        port = other.getsockname()[1]
        texts = outputs([start(rank, port, timeout_s=5) for rank in (0, 1)])
    assert "rank 0 on host" in error_of(texts[0])
    for text in texts:
        assert f"MASTER_PORT={port}" in error_of(text)
        assert "another program uses this port" in error_of(text)


def test_another_job_at_the_port_is_told_so_and_does_no_harm():
    port = free_port()
    first, second = (
        [start(rank, port, timeout_s=limit, env={"SLURM_JOB_ID": job}) for rank in (0, 1)]
        for job, limit in (("16", 60), ("17", 5))
    )
    release(first[:1])
    wait_until(lambda: is_open(port), first[0])
    for rank, text in enumerate(outputs(second)):
        assert error_of(text).startswith(
            f"MASTER_PORT={port} on 127.0.0.1 is in use by run unknown, job 16, but rank {rank} belongs to "
            "run unknown, job 17; "
        )
    release(first[1:])
    assert all(found_by(text)["left"] == [False, 0] for text in ends(first))


def test_each_of_ten_worlds_of_one_is_refused_without_waiting():
    (text,) = outputs([start(0, 0, size=1, devices=10, timeout_s=10 * TIMEOUT_S)])
    assert "world_size=1 in process" in error_of(text)
    assert "nodes=1 x devices=10 are planned: 10 processes like this one would" in error_of(text)


def test_more_threads_than_cpus_are_refused_on_every_rank():
    port, cpus = free_port(), len(os.sched_getaffinity(0))
    ranks = [start(rank, port, oversubscribe=False, threads=cpus) for rank in (0, 1)]
    for text in outputs(ranks):
        assert f"run {2 * cpus} threads on {cpus} CPUs" in error_of(text)


def test_the_others_say_that_rank_0_has_ended():
    port = free_port()
    ranks = [start(rank, port, size=3) for rank in (0, 1)]
    release(ranks)
    wait_until(lambda: num_joined(port) == 2, ranks[0])
    ranks[0].kill()
    _, text = ends(ranks)
    assert "the ranks' store (node 0, unknown host) ended while rank 1 on host" in error_of(text)


def test_a_rank_that_dies_after_joining_is_named_as_silent():
    port = free_port()
    ranks = [start(rank, port, size=3, timeout_s=10) for rank in range(3)]
    release(ranks[:2])
    wait_until(lambda: num_joined(port) == 2, ranks[0])
    ranks[1].kill()
    release(ranks[2:])
    first, _, last = ends(ranks)
    assert error_of(first) == error_of(last)
    assert "could not form a process group with all ranks with backend=gloo: " in error_of(first)
    assert "rank 1 did not respond: read the log there first" in error_of(first)


def test_ranks_of_torchrun_meet_in_its_agents_store():
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--no-python",
        sys.executable, "-c", RANK, options(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in re.findall(r"^FOUND (.*)$", done.stdout, re.MULTILINE)]
    assert [one["left"] for one in found] == [[False, 0]] * 2
    assert "nodes=1 x devices=2 by torchrun, backend=gloo" in done.stdout
