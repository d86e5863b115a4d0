"""Checks of this process's place among the ranks, and the parsers of host lists and ports."""

import hashlib
import ipaddress
import re
from itertools import product

from shardline.core.errors import LaunchError
from shardline.core.world import World

_PORTS = range(20000, 32768)  # below Linux's ephemeral range, above the usual services
_HOST = re.compile(r"(?:[^\[\],\s]|\[[\d,-]+\])+")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def check_world(world: World, *, nodes: int, devices: int) -> None:
    """Check that the launcher started the world that the run needs.

    Raises:
        LaunchError: the geometry differs; the message names both geometries and the variables read.
    """
    if (world.num_nodes, world.local_world_size) != (nodes, devices):
        found = [world.origins.get(name) for name in ("world_size", "local_world_size")]
        read = f" (from {', '.join(filter(None, found))})" if any(found) else ""
        raise LaunchError(
            f"the run needs nodes={nodes} x devices={devices}, but {world.launcher} started "
            f"{world.num_nodes} x {world.local_world_size}{read}; fix the launcher's geometry"
        )


def check_numbers(world: World) -> None:
    """Check that the numbers of a world are possible and agree with each other.

    Raises:
        LaunchError: the message names the variables, their values and the contradiction.
    """

    def described(name: str) -> str:
        return world.origins.get(name, f"{name}={getattr(world, name)}")

    for name, limit_name in (("rank", "world_size"), ("local_rank", "local_world_size")):
        value, limit = getattr(world, name), getattr(world, limit_name)
        if limit < 1:
            raise LaunchError(f"{described(limit_name)} must be at least 1; fix the launcher")
        if not 0 <= value < limit:
            raise LaunchError(
                f"{described(name)} is outside 0..{limit - 1} ({described(limit_name)}); fix the launcher"
            )
    if world.world_size % world.local_world_size:
        raise LaunchError(
            f"{described('world_size')} is not a multiple of {described('local_world_size')}; "
            "start the same number of ranks on each node"
        )
    # collectives and sharding within a node depend on this order; torchrun always uses it
    if world.rank % world.local_world_size != world.local_rank:
        raise LaunchError(
            f"{described('rank')} does not match {described('local_rank')} with "
            f"{described('local_world_size')} ranks per node; number the ranks node by node "
            "(srun --distribution=block, mpirun --map-by slot)"
        )
    # correct on rank 0's own node: some Kubernetes operators set localhost there
    if world.node_rank > 0 and is_loopback(world.master_addr):
        raise LaunchError(
            f"{described('master_addr')} is a loopback address, but {described('rank')} is on node {world.node_rank} "
            f"of {world.num_nodes}; set MASTER_ADDR to the name of rank 0's node"
        )
    if not (world.world_size == 1 or 0 < world.master_port < 65536):
        raise LaunchError(
            f"{described('master_port')} is not a TCP port; set MASTER_PORT to a free one, 1024..65535"
        )
    if world.hosts and len(world.hosts) != world.num_nodes:
        raise LaunchError(
            f"{described('hosts')} lists {len(world.hosts)} nodes, but the ranks are on "
            f"{world.num_nodes}; list every node once, by node rank"
        )


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.split(".")[0] == "localhost"


def derived_port(job_id: str, attempt: int = 0) -> int:
    """Return a port for a job: the same on every rank, different for other jobs and attempts.

    Args:
        job_id: the scheduler's job ID, or any other text that all ranks share.
        attempt: number of ports that turned out to be taken.
    """
    digest = hashlib.sha256(f"{job_id}/{attempt}".encode()).digest()
    return _PORTS[int.from_bytes(digest[:8], "big") % len(_PORTS)]


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Expand Slurm's host list: `n[1-3,07],gpu-a` means n1, n2, n3, n07, gpu-a.

    Raises:
        LaunchError: the text is not a host list.
    """
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        if not _HOST.fullmatch(part):
            raise LaunchError(
                f"{text!r} is not a list of hosts; write it as Slurm does: n[1-3,07],gpu-a"
            )
        pieces = [
            _expand_ranges(piece[1:-1], text) if piece.startswith("[") else [piece]
            for piece in re.findall(r"\[.*?\]|[^\[]+", part)
        ]
        hosts += ["".join(choice) for choice in product(*pieces)]
    return tuple(hosts)


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise LaunchError(f"{text} has the range {part}; write it as Slurm does: n[1-3,07]")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def expand_tasks(text: str) -> tuple[int, ...]:
    """Expand Slurm's counts per node: `2(x3),1` means 2, 2, 2, 1.

    Raises:
        LaunchError: the text is not a list of counts.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if not match:
            raise LaunchError(f"{text} is not a list of counts; write it as Slurm does: 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)
