"""What any training program reads of its place: torch, Lightning, DeepSpeed, Accelerate, MPI, TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardline.core.errors import LaunchError
from shardline.core.world import World


def with_hosts(world: World, ranks: Sequence[Mapping[str, Any]]) -> World:
    """Return a world with the addresses of its nodes, where its launcher has not named them.

    torchrun numbers nodes as they meet, so only the ranks themselves know which is where.

    Args:
        ranks: of the preflight check, by rank; of each its `address` on the way to rank 0.
    """
    if world.hosts or world.num_nodes == 1:
        return world
    others = ranks[world.local_world_size :: world.local_world_size]
    # what rank 0 calls itself may be its loopback
    return replace(world, hosts=(world.master_addr, *(rank["address"] for rank in others)))


def export_world(world: World) -> dict[str, str]:
    """Return the variables that let any training program be this rank.

    `TF_CONFIG` names one TensorFlow worker per rank and needs the nodes' names:
    where `world.hosts` is empty in a world of several nodes it is left out,
    and nothing else changes. A world of one needs none. `resolve_world` of the
    variables gives the world's numbers back. TensorFlow's workers listen on the
    ports after the master port, one for each rank of a node.

    Raises:
        LaunchError: a worker's port is outside of 1..65535; the message names it.
    """
    rank, size = str(world.rank), str(world.world_size)
    local_rank, local_size = str(world.local_rank), str(world.local_world_size)
    node_rank, num_nodes = str(world.node_rank), str(world.num_nodes)
    return {
        # torch's env:// and torchrun's; Accelerate and Lightning read these
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": num_nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "NODE_RANK": node_rank,  # LightningEnvironment
        # DeepSpeed's launcher
        "LOCAL_SIZE": local_size,
        "CROSS_RANK": node_rank,
        "CROSS_SIZE": num_nodes,
        # Open MPI's, for scripts that read them before or without MPI_Init
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,  # not the node's: "relative rank on this node"
        "OMPI_UNIVERSE_SIZE": size,
        **({"SHARDLINE_HOSTS": ",".join(world.hosts)} if world.hosts else {}),
        **_tensorflow(world),
    }


def _tensorflow(world: World) -> dict[str, str]:
    """Return TF_CONFIG as tf.distribute.cluster_resolver.TFConfigClusterResolver documents it."""
    hosts = world.hosts or ((world.master_addr,) if world.num_nodes == 1 else ())
    if world.world_size == 1 or not hosts:
        return {}
    local_size = world.local_world_size
    workers = []
    for rank in range(world.world_size):
        port = world.master_port + 1 + rank % local_size
        if not 0 < port < 65536:
            raise LaunchError(
                f"TensorFlow's worker {rank} would listen on port {port}, which is no TCP port; "
                f"use a lower MASTER_PORT than {world.master_port}"
            )
        host = hosts[rank // local_size]
        workers.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": world.rank}}
    return {"TF_CONFIG": json.dumps(config)}
