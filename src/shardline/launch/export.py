"""Environment variables of a rank's place for torch, Lightning, DeepSpeed, Accelerate, MPI and TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardline.core.errors import LaunchError
from shardline.core.world import World


def with_hosts(world: World, ranks: Sequence[Mapping[str, Any]]) -> World:
    """Return a world with the addresses of its nodes, if the launcher did not name them.

    torchrun numbers nodes in the order of their arrival, so only the ranks know their nodes.

    Args:
        ranks: each rank's record of the preflight check, by rank, with its `address`.
    """
    if world.hosts or world.num_nodes == 1:
        return world
    others = ranks[world.local_world_size :: world.local_world_size]
    # rank 0 may know itself by its loopback address only
    return replace(world, hosts=(world.master_addr, *(rank["address"] for rank in others)))


def export_world(world: World) -> dict[str, str]:
    """Return the environment variables that give this rank's place to any training program.

    `TF_CONFIG` lists one TensorFlow worker per rank, so it needs the nodes' names.
    It is left out for one process, and for several nodes without `world.hosts`.
    TensorFlow's workers listen on the ports after the master port, one per rank of
    a node. `resolve_world` reads the same world back from the variables.

    Raises:
        LaunchError: a TensorFlow worker's port is outside of 1..65535; the message names it.
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
                f"TensorFlow's worker {rank} would listen on port {port}, but ports end at 65535; "
                f"set a MASTER_PORT below {world.master_port}"
            )
        host = hosts[rank // local_size]
        workers.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": world.rank}}
    return {"TF_CONFIG": json.dumps(config)}
