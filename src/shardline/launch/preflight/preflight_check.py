"""The preflight check before a training: membership of all ranks, and every path between them."""

import os
import socket
import time
from collections.abc import Mapping

import torch

from shardline.core.errors import LaunchError
from shardline.core.variables import TRANSPORTS, recorded_variables
from shardline.core.world import World
from shardline.launch.device import device_name
from shardline.launch.preflight.membership import (
    check_device,
    check_gloo,
    check_membership,
    check_node,
    check_plan,
)
from shardline.launch.preflight.paths import Paths
from shardline.launch.preflight.preflight_table import Arrival, PreflightReport, compact
from shardline.launch.preflight.rendezvous import (
    Rendezvous,
    gloo_address,
    interface_of,
    local_address,
)

_JOB_VARIABLES = ("SLURM_JOB_ID", "AZUREML_RUN_ID", "PBS_JOBID")
_ERROR_READ_S = 10.0  # for the other ranks, on busy machines too, to read the error
_CLOSE_S = 30.0
# Keys that only the membership check reads.
_NOT_SHOWN = (
    "pid", "run", "problem", "planned", "gpu", "gloo_address", "cpu_list", "world_size",
    "local_world_size",
)  # fmt: skip


def run_preflight(
    world: World, *, backend: str, device: torch.device | str, timeout_s: float,
    planned: Mapping[str, int], describe: Arrival, oversubscribe: bool = False,
) -> PreflightReport:  # fmt: skip
    """Check that all ranks join, and measure every path between them, before a training.

    Every rank calls this function before it creates its own process group.
    No group is left open. Rank 0 prints the table.

    Args:
        backend: `gloo` or `nccl`.
        device: device that this rank computes on.
        timeout_s: `rendezvous_timeout_s`: seconds for all ranks to join, then
            again for forming a group and for each message.
        planned: `nodes` and `devices` of the run.
        describe: further JSON values about this rank, such as `threads` (CPU
            threads of an operation), `run`, and `problem` (an error that this
            rank has already found).
        oversubscribe: whether a node may have more threads than CPUs.

    Raises:
        LaunchError: a rank is missing, joined twice, is in another world or
            lacks its device, or a message did not arrive. The message names
            the rank, its host and the remedy.
    """
    device = torch.device(device)
    me = _describe_rank(world, device, planned, describe)
    if world.world_size == 1:
        if me["problem"]:
            raise LaunchError(me["problem"])
        rows: list[Arrival] = [{**me, "latency_us": None, "bandwidth_mb_s": None, "joined_s": 0.0}]
        check_node(rows, backend=backend, oversubscribe=oversubscribe)
    else:
        rows = _join_and_measure(world, me, backend, device, timeout_s, oversubscribe)
    shown = [{key: row[key] for key in row if key not in _NOT_SHOWN} for row in rows]
    found = PreflightReport(
        backend=backend, launcher=world.launcher, nodes=world.num_nodes, ranks=shown
    )
    if world.rank == 0:
        print(found.table(), flush=True)
    return found


def _describe_rank(
    world: World, device: torch.device, planned: Mapping[str, int], describe: Arrival
) -> Arrival:
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    address = local_address(world.master_addr) if world.world_size > 1 else ""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    problem = _problem(world, device, gpus, planned) or describe.get("problem", "")
    name, gpu = "", ""
    if not problem:  # with a problem, the device may be missing
        name = device_name(str(device))
        gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    return {
        "rank": world.rank,
        "local_rank": world.local_rank,
        "node_rank": world.rank // world.local_world_size,
        "host": socket.gethostname(),
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "run": "",
        **describe,
        "cpus": compact(cpus),
        "interface": interface_of(address),
        "address": address,
        "settings": recorded_variables(os.environ, TRANSPORTS),
        "launcher": world.launcher,
        "job": next((os.environ[key] for key in _JOB_VARIABLES if os.environ.get(key)), ""),
        "pid": os.getpid(),
        "world_size": world.world_size,
        "local_world_size": world.local_world_size,
        "planned": [planned["nodes"], planned["devices"]],
        "cpu_list": cpus,
        "gpu": gpu,
        "gloo_address": "" if os.environ.get("GLOO_SOCKET_IFNAME") else gloo_address(),
        "problem": problem,
    }  # fmt: skip


def _problem(world: World, device: torch.device, gpus: int, planned: Mapping[str, int]) -> str:
    """Return an error that this rank finds on its own, or an empty string."""
    try:
        check_plan(world, planned)
        if device.type == "cuda":
            index = world.local_rank if device.index is None else device.index
            check_device(index, gpus, os.environ)
    except LaunchError as error:
        return str(error)
    return ""


def _join_and_measure(
    world: World, me: Arrival, backend: str, device: torch.device,
    timeout_s: float, oversubscribe: bool,
) -> list[Arrival]:  # fmt: skip
    """Return the description and the measurements of each rank, by rank."""
    started = time.monotonic()
    try:
        rendezvous = Rendezvous(world, started + timeout_s)
    except LaunchError as error:
        # this rank's own problem is the more likely cause
        raise LaunchError(me["problem"] or str(error)) from None
    try:
        ranks = check_membership(rendezvous, world, me, timeout_s)
        joined_s = time.monotonic() - started
        check_node(ranks, backend=backend, oversubscribe=oversubscribe)
        if backend == "gloo":
            check_gloo(ranks)
        paths = Paths(rendezvous, ranks, world.rank, backend, device, timeout_s)
        measured = paths.measure(joined_s)
    except BaseException:
        rendezvous.close(timeout_s=_ERROR_READ_S, is_failed=True)
        raise
    rendezvous.close(timeout_s=min(timeout_s, _CLOSE_S))
    return [
        {
            **rank,
            "latency_us": round(us, 1),
            "bandwidth_mb_s": round(mb_s, 1),
            "joined_s": round(s, 3),
        }
        for rank, (us, mb_s, s) in zip(ranks, measured, strict=True)
    ]
