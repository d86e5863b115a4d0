"""What a preflight check prints, and what it rejects without other ranks or a GPU."""

from dataclasses import asdict

import pytest

from shardline.core.world import World
from shardline.errors import LaunchError
from shardline.launch.preflight.membership import (
    check_device,
    check_gloo,
    check_node,
    find_conflict,
    missing_message,
)
from shardline.launch.preflight.preflight_check import run_preflight
from shardline.launch.preflight.preflight_table import PreflightReport, compact


def row(rank, **changes):
    return {
        "rank": rank, "local_rank": rank % 2, "node_rank": rank // 2, "host": f"n{rank // 2}",
        "device": "cpu", "device_name": "Some Processor", "threads": 4, "cpus": "0-3",
        "interface": "eth0", "address": f"10.0.0.{rank // 2 + 1}", "settings": {},
        "latency_us": 84.6, "bandwidth_mb_s": 1180.2, "joined_s": 0.31 * rank, **changes,
    }  # fmt: skip


def report(*rows, backend="gloo", nodes=2):
    return PreflightReport(backend=backend, launcher="srun", nodes=nodes, ranks=rows)


def test_the_table_of_a_small_world():
    assert report(*map(row, range(4))).table().splitlines() == [
        "preflight check: nodes=2 x devices=2 by srun, backend=gloo, all ranks joined in 0.93 s",
        "rank  host  local  device  CPUs    interface      latency  bandwidth",
        "   0  n0        0  cpu     0-3 x4  eth0 10.0.0.1    85 us  1180 MB/s",
        "   1  n0        1  cpu     0-3 x4  eth0 10.0.0.1    85 us  1180 MB/s",
        "   2  n1        0  cpu     0-3 x4  eth0 10.0.0.2    85 us  1180 MB/s",
        "   3  n1        1  cpu     0-3 x4  eth0 10.0.0.2    85 us  1180 MB/s",
    ]


def test_long_names_are_cut_to_100_columns_and_keep_both_ends():
    long = {
        "host": "compute-07.cluster.institute.example", "device": "cuda:0",
        "device_name": "NVIDIA A100-SXM4-80GB", "cpus": "0-15,32-47,64-79",
        "interface": "enp65s0f0np0", "address": "fe80::a8bb:ccff:fedd:ee01",
    }  # fmt: skip
    settings = {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "ib0"}
    found = report(
        row(0, **long, settings=settings),
        row(1, settings=settings),
        row(2),
        backend="nccl",
        nodes=1,
    )
    title, *table, shared, none = found.table().splitlines()
    assert title.startswith("preflight check: nodes=1 x devices=3")
    assert table == [
        "rank  host             local  device           CPUs             interface         latency  bandwidth",
        "   0  compute..xample      0  cuda:0 ..4-80GB  0-15,32..-79 x4  enp65s0..dd:ee01    85 us  1180 MB/s",
        "   1  n0                   1  cpu              0-3 x4           eth0 10.0.0.1       85 us  1180 MB/s",
        "   2  n1                   0  cpu              0-3 x4           eth0 10.0.0.2       85 us  1180 MB/s",
    ]
    assert max(map(len, table)) == 100
    assert shared == "ranks 0-1: NCCL_IB_HCA=mlx5_0 NCCL_SOCKET_IFNAME=ib0"
    assert none == "rank 2: no network settings"


def test_the_table_in_plain_values_holds_every_row():
    found = report(row(0), row(1), nodes=1)
    assert asdict(found) == {
        "backend": "gloo", "launcher": "srun", "nodes": 1, "ranks": (row(0), row(1)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((3, 0, 1, 2, 8), "0-3,8"), ((0, 2, 4), "0,2,4")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert compact(numbers) == text


def test_a_world_of_one_needs_no_network(capsys):
    world = World(
        rank=0, local_rank=0, world_size=1, local_world_size=1,
        master_addr="127.0.0.1", master_port=0, launcher="none",
    )  # fmt: skip
    found = run_preflight(
        world, backend="gloo", device="cpu", timeout_s=5, planned={"nodes": 1, "devices": 1},
        describe={"threads": 1},
    )  # fmt: skip
    assert [(row["rank"], row["latency_us"]) for row in found.ranks] == [(0, None)]
    assert capsys.readouterr().out == found.table() + "\n"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, "CUDA_VISIBLE_DEVICES is not set"),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, "CUDA_VISIBLE_DEVICES is 4,5"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is empty"),
    ],
)
def test_a_gpu_that_is_not_visible_is_refused(env, told):
    check_device(1, 2, env)
    with pytest.raises(LaunchError, match=f"this rank needs GPU 2, but sees 2 GPUs \\({told}\\)"):
        check_device(2, 2, env)


def rank(number, **changes):
    return {
        "rank": number, "node_rank": 0, "host": "n0", "pid": 100 + number, "job": "", "run": "",
        "launcher": "srun", "world_size": 4, "local_world_size": 4, "planned": [1, 4],
        "problem": "", "device": "cuda:0", "gpu": "", "threads": 2, "cpu_list": [0, 1, 2, 3],
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([rank(0), rank(1), rank(2)], r"ranks 0-2 on host n0 run 6 threads on 4 CPUs \(0-3\)"),
        (
            [rank(0, cpu_list=[0]), rank(1, cpu_list=[1, 2, 3])],
            r"rank 0 on host n0 run 2 threads on 1 CPUs \(0\)",
        ),
    ],
)
def test_more_threads_than_cpus_on_a_node_are_refused_unless_meant(ranks, message):
    with pytest.raises(LaunchError, match=message):
        check_node(ranks, backend="gloo", oversubscribe=False)
    check_node(ranks, backend="gloo", oversubscribe=True)


def test_as_many_threads_as_cpus_on_each_node_are_right():
    apart = [rank(0), rank(1), rank(2, node_rank=1), rank(3, node_rank=1)]
    check_node(apart, backend="gloo", oversubscribe=False)
    check_node([rank(0, cpu_list=[]), rank(1, cpu_list=[])], backend="gloo", oversubscribe=False)


def test_two_ranks_on_one_gpu_are_refused_where_the_backend_cannot():
    ranks = [rank(0, gpu="GPU-1"), rank(1, gpu="GPU-1")]
    check_node(ranks, backend="gloo", oversubscribe=True)
    with pytest.raises(LaunchError, match=r"ranks 0 and 1 on host n0 both use cuda:0 \(GPU-1\)"):
        check_node(ranks, backend="nccl", oversubscribe=True)


def test_an_address_of_gloo_that_other_hosts_cannot_reach_is_refused():
    shared = {"interface": "lo", "address": "127.0.0.1", "gloo_address": "127.0.1.1"}
    check_gloo([rank(0, **shared), rank(1, host="n1", **shared)])
    way = {"interface": "eth1", "address": "10.0.0.1"}
    good, other = rank(0, **way, gloo_address=""), {**way, "host": "n1"}
    check_gloo([good, rank(1, **way, gloo_address="127.0.1.1")])
    check_gloo([good, rank(1, **other, gloo_address="10.0.0.2")])
    with pytest.raises(LaunchError, match=r"rank 1: gloo would listen on 127\.0\.1\.1, .*=eth1"):
        check_gloo([good, rank(1, **other, gloo_address="127.0.1.1")])


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([rank(0), rank(2)], ""),
        ([rank(2), rank(2, pid=7, host="n9")], "rank 2 was claimed twice, by pid 102 on host n0 and "),
        ([rank(1, world_size=8), rank(0)], "rank 1 on host n0 (pid 101) was started by srun into a world "),
        ([rank(0), rank(1, local_world_size=2)], "rank 1 on host n0 (pid 101) was started by srun into a node of 2"),
        ([rank(0), rank(1, planned=[2, 2])], "rank 1 on host n0 (pid 101) was planned for nodes x devices=2 x 2,"),
        ([rank(0), rank(3, problem="no GPU; buy one")], "rank 3 on host n0 (pid 103): no GPU; buy one"),
    ],
)  # fmt: skip
def test_conflicts_of_membership_are_named(arrivals, message):
    found = find_conflict(arrivals)
    assert found == message if not message else found.startswith(message)


def test_missing_ranks_are_named_node_by_node():
    world = World(
        rank=0, local_rank=0, world_size=40, local_world_size=4, master_addr="n0",
        master_port=29400, launcher="srun", hosts=tuple(f"n{node}" for node in range(10)),
    )  # fmt: skip
    came = [rank(number, host="n0.example") for number in (0, 2, 3)]
    message = missing_message(world, came, 60)
    assert message.startswith(
        "37 of 40 ranks did not join within rendezvous_timeout_s=60: rank 1 (node 0, host n0.example), "
        "ranks 4-7 (node 1, host n1), "
    )
    assert (
        "ranks 28-31 (node 7, host n7) and the ranks of 2 more nodes; ranks 0,2-3 joined; "
        in message
    )
    assert "no rank joined" in missing_message(world, [], 60)
