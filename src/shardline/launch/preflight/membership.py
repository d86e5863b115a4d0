"""Membership check before a training: which ranks have joined, are missing or belong to another job."""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence

import torch.distributed as dist

from shardline.core.errors import LaunchError
from shardline.core.world import World
from shardline.launch.launched_world import check_world, is_loopback
from shardline.launch.preflight.preflight_table import Arrival, compact, name_ranks
from shardline.launch.preflight.rendezvous import Rendezvous, pauses, place_of

_NODES_NAMED = 8


def check_membership(
    rendezvous: Rendezvous, world: World, me: Arrival, timeout_s: float
) -> list[Arrival]:
    """Wait until all ranks of the world have joined.

    Args:
        me: description of this rank: rank, world_size, local_world_size, host,
            pid, job, run, launcher, planned, problem, and further values for the
            report.
        timeout_s: `rendezvous_timeout_s`, for the messages.

    Returns:
        Descriptions of all ranks, by rank; the same list on every rank.

    Raises:
        LaunchError: a rank is missing, has joined twice, has a problem or
            was started with another world; the same message on every rank.
    """
    try:
        rendezvous.store.append("arrivals", json.dumps(me) + "\n")  # type: ignore[attr-defined]  # not in its stub
        text = (_decide if rendezvous.is_coordinator else _await_decision)(
            rendezvous, world, me, timeout_s
        )
    except dist.DistError:
        raise LaunchError(
            f"the ranks' store ({place_of(world, 0)}) ended while rank {me['rank']} on host {me['host']} "
            "waited for the other ranks; read the log of rank 0 for the cause"
        ) from None
    decision = json.loads(text)
    if _is_foreign(decision, me):
        raise LaunchError(_foreign_message(world, decision, me))
    if decision["error"]:
        raise LaunchError(decision["error"])
    return sorted(decision["arrivals"], key=lambda arrival: int(arrival["rank"]))


def _decide(rendezvous: Rendezvous, world: World, me: Arrival, timeout_s: float) -> str:
    """Read arrivals until all ranks have joined or a conflict is found, and publish the decision."""
    remind_at = (time.monotonic() + rendezvous.deadline) / 2
    for pause in pauses():
        arrivals = [other for other in _read(rendezvous) if not _is_foreign(other, me)]
        error = find_conflict(arrivals)
        if error or len(arrivals) >= world.world_size:
            break
        if time.monotonic() > rendezvous.decide_at:
            error = missing_message(world, arrivals, timeout_s)
            rendezvous.others = len(arrivals) - 1
            break
        if time.monotonic() > remind_at:
            remind_at = rendezvous.deadline
            print(f"preflight check: still waiting for {_missing(world, arrivals)}", flush=True)
        time.sleep(pause)
    decision = {"error": error, "job": me["job"], "run": me["run"], "arrivals": arrivals}
    return rendezvous.agree("decision", json.dumps(decision))


def _await_decision(rendezvous: Rendezvous, world: World, me: Arrival, timeout_s: float) -> str:
    """Wait for the decision of rank 0; at the deadline, report the arrivals that this rank reads."""
    for pause in pauses():
        if rendezvous.store.check(["decision"]):
            break
        is_late = time.monotonic() > rendezvous.deadline
        if is_late or me["rank"] == 0:  # another rank 0 has the port: no need to wait
            arrivals = _read(rendezvous)
            if foreign := [other for other in arrivals if _is_foreign(other, me)]:
                raise LaunchError(_foreign_message(world, foreign[0], me))
            if is_late:
                raise LaunchError(missing_message(world, arrivals, timeout_s))
        time.sleep(pause)
    return str(rendezvous.store.get("decision").decode())


def _read(rendezvous: Rendezvous) -> list[Arrival]:
    if not rendezvous.store.check(["arrivals"]):
        return []
    return [json.loads(line) for line in rendezvous.store.get("arrivals").splitlines()]


def _is_foreign(one: Arrival, other: Arrival) -> bool:
    """Return whether two ranks belong to different jobs; a rank started over ssh may not know its job."""
    return any(one[key] and other[key] and one[key] != other[key] for key in ("job", "run"))


def _foreign_message(world: World, holder: Arrival, me: Arrival) -> str:
    return (
        f"MASTER_PORT={world.master_port} on {world.master_addr} is in use by {_job(holder)}, but "
        f"rank {me['rank']} belongs to {_job(me)}; give each job its own port"
    )


def _job(arrival: Arrival) -> str:
    return f"run {arrival['run'] or 'unknown'}, job {arrival['job'] or 'unknown'}"


def find_conflict(arrivals: Sequence[Arrival]) -> str:
    """Return the first conflict among the ranks that have joined, or an empty string.

    Args:
        arrivals: descriptions of ranks, in the order in which they joined.
    """
    leaders = [arrival for arrival in arrivals if arrival["rank"] == 0]
    seen: dict[int, Arrival] = {}
    for arrival in arrivals:
        leader = leaders[0] if leaders else arrival
        twin = seen.setdefault(arrival["rank"], arrival)
        if twin is not arrival:
            return (
                f"rank {arrival['rank']} was claimed twice, by pid {twin['pid']} on host {twin['host']} and "
                f"by pid {arrival['pid']} on host {arrival['host']}; start each rank once (look for nested "
                "launchers, or a process left by an earlier attempt)"
            )
        for key, noun in (("world_size", "world"), ("local_world_size", "node")):
            if arrival[key] != leader[key]:
                return (
                    f"{_name_rank(arrival)} was started by {arrival['launcher']} into a {noun} of {arrival[key]} "
                    f"ranks, but {_name_rank(leader)} by {leader['launcher']} into a {noun} of {leader[key]}; start "
                    "all ranks with one launcher command, and check its numbers of ranks and nodes"
                )
        if arrival["planned"] != leader["planned"]:
            return (
                f"{_name_rank(arrival)} was planned for nodes x devices={_times(arrival)}, {_name_rank(leader)} for "
                f"{_times(leader)}; give all ranks the same run.json"
            )
        if arrival["problem"]:
            return f"{_name_rank(arrival)}: {arrival['problem']}"
    return ""


def _name_rank(arrival: Arrival) -> str:
    return f"rank {arrival['rank']} on host {arrival['host']} (pid {arrival['pid']})"


def _times(arrival: Arrival) -> str:
    return " x ".join(map(str, arrival["planned"]))


def missing_message(world: World, arrivals: Sequence[Arrival], timeout_s: float) -> str:
    """Return the message that names the missing ranks and their hosts."""
    joined = name_ranks([arrival["rank"] for arrival in arrivals])
    return (
        f"{world.world_size - len(arrivals)} of {world.world_size} ranks did not join within "
        f"rendezvous_timeout_s={timeout_s:g}: {_missing(world, arrivals)}; "
        f"{f'{joined} joined' if arrivals else 'no rank joined'}; read the logs of the missing ranks and check "
        "their hosts, or raise rendezvous_timeout_s if they start slowly"
    )


def _missing(world: World, arrivals: Sequence[Arrival]) -> str:
    """Name the missing ranks node by node."""
    joined = {arrival["rank"] for arrival in arrivals}
    seen = {arrival["rank"] // world.local_world_size: arrival["host"] for arrival in arrivals}
    nodes: dict[int, list[int]] = {}
    for rank in sorted(set(range(world.world_size)) - joined):
        nodes.setdefault(rank // world.local_world_size, []).append(rank)
    named = [
        f"{name_ranks(ranks)} ({place_of(world, ranks[0], seen.get(node, ''))})"
        for node, ranks in nodes.items()
    ]
    more = len(named) - _NODES_NAMED
    return ", ".join(named[:_NODES_NAMED]) + (
        f" and the ranks of {more} more nodes" if more > 0 else ""
    )


def check_plan(world: World, planned: Mapping[str, int]) -> None:
    """Check that the world has the planned size, and that the ranks are not one world each.

    Raises:
        LaunchError: the sizes differ; the message names the planned and the started ranks.
    """
    nodes, devices = planned["nodes"], planned["devices"]
    if world.world_size == 1 and nodes * devices > 1:
        raise LaunchError(
            f"world_size=1 in process {os.getpid()} on host {socket.gethostname()}, but nodes={nodes} x "
            f"devices={devices} are planned: {nodes * devices} processes like this one would train alone, each as "
            "rank 0; set runtime.launcher to the launcher whose variables reach them: srun of this Slurm, "
            "mpirun of the MPI that is installed here, or torchrun"
        )
    check_world(world, nodes=nodes, devices=devices)


def check_device(index: int, num_visible: int, env: Mapping[str, str]) -> None:
    """Check that this process sees the GPU of its rank.

    Args:
        index: GPU of this rank, among the visible GPUs.
        num_visible: GPUs that this process sees.
        env: process environment; CUDA_VISIBLE_DEVICES is read.

    Raises:
        LaunchError: the GPU is missing; the message names both numbers and CUDA_VISIBLE_DEVICES.
    """
    if index >= num_visible:
        visible = env.get("CUDA_VISIBLE_DEVICES")
        value = "is not set" if visible is None else f"is {visible or 'empty'}"
        raise LaunchError(
            f"this rank needs GPU {index}, but sees {num_visible} GPUs (CUDA_VISIBLE_DEVICES {value}); "
            "request as many GPUs per node as devices, lower devices, or set accelerator=cpu"
        )


def check_gloo(ranks: Sequence[Arrival]) -> None:
    """Check that ranks of other hosts can reach each rank's address for gloo.

    Args:
        ranks: records of all ranks, each with rank, host, `interface` and `address` on
            the way to rank 0, and `gloo_address`, empty if an interface is set.

    Raises:
        LaunchError: a host is unreachable; the message names it, its address and the interface to set.
    """
    if len({rank["host"] for rank in ranks}) == 1 or all(
        map(is_loopback, (rank["address"] for rank in ranks))
    ):
        return  # all ranks are on one machine
    for rank in ranks:
        if rank["gloo_address"] and is_loopback(rank["gloo_address"]):
            raise LaunchError(
                f"rank {rank['rank']}: gloo would listen on {rank['gloo_address']}, the loopback address to which "
                f"host {rank['host']} resolves its own name, so other hosts cannot connect; set GLOO_SOCKET_IFNAME="
                f"{rank['interface'] or 'eth0'}, the interface between the hosts"
            )


def check_node(ranks: Sequence[Arrival], *, backend: str, oversubscribe: bool) -> None:
    """Check that ranks of one node share no GPU and have no more threads than CPUs.

    Args:
        ranks: records of all ranks, each with rank, node_rank, host, threads, `gpu`
            (UUID, or empty) and `cpu_list` (numbers of the CPUs that it may run
            on, empty if unknown).
        backend: `nccl` allows one rank per GPU.
        oversubscribe: allow more threads than CPUs.

    Raises:
        LaunchError: the message names the node, the counts and what to change.
    """
    for node in sorted({rank["node_rank"] for rank in ranks}):
        mine = [rank for rank in ranks if rank["node_rank"] == node]
        users: dict[str, int] = {}
        for rank in mine:
            other = users.setdefault(rank["gpu"], rank["rank"])
            if backend == "nccl" and rank["gpu"] and other != rank["rank"]:
                raise LaunchError(
                    f"ranks {other} and {rank['rank']} on host {rank['host']} both use {rank['device']} "
                    f"({rank['gpu']}); give each rank its own GPU, or lower devices"
                )
        if not oversubscribe:
            for group in (mine, *([rank] for rank in mine)):  # each may be bound to its CPUs
                _check_threads(group)


def _check_threads(ranks: Sequence[Arrival]) -> None:
    cpus = {cpu for rank in ranks for cpu in rank["cpu_list"]}
    threads = sum(rank["threads"] for rank in ranks)
    if not cpus or threads <= len(cpus):
        return
    who = name_ranks([rank["rank"] for rank in ranks])
    raise LaunchError(
        f"{who} on host {ranks[0]['host']} run {threads} threads on {len(cpus)} CPUs ({compact(cpus)}); lower "
        "threads_per_rank, raise cpus_per_task, or set oversubscribe=true to allow it"
    )
