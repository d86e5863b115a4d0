"""The processes of an Azure ML job, and torchrun's agent on each of its nodes.

The executor plugin's node program runs Snakemake's job on the first node and
waits with the other processes for commands that the job launches.
`SNAKEMAKE_AZUREML_WORLD` lists the processes, `SNAKEMAKE_AZUREML_RANK` is the
rank of this process among them, and `SNAKEMAKE_AZUREML_LAUNCH` is the command
prefix that starts a command on all of them.

`python -m shardline.launch.azureml ARGUMENTS` is such a command: torchrun with
the arguments and the number of its own node.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from shardline.core.errors import LaunchError
from shardline.core.rank_environment import without_place

_LAUNCH, _WORLD, _RANK = (f"SNAKEMAKE_AZUREML_{name}" for name in ("LAUNCH", "WORLD", "RANK"))
_REMEDY = "start the job with --profile azureml"


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes that Azure ML started for this job.

    Attributes:
        prefix: arguments that precede a command to start it on all processes.
        nodes: number of the node of each process, by rank.
        hosts: address of each node.
    """

    prefix: tuple[str, ...]
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]


def find_processes(env: Mapping[str, str], *, nodes: int, devices: int) -> Processes | None:
    """Read the processes of this Azure ML job: one for each planned rank, or one for each planned node.

    Returns:
        None if the node program does not run this job, or if the job has only one process.

    Raises:
        LaunchError: the list of processes is unreadable, or does not match the planned geometry.
    """
    if not env.get(_LAUNCH):
        if nodes == 1:
            return None
        raise LaunchError(
            f"nodes={nodes} and runtime.launcher=azureml, but {_LAUNCH} is not set: Azure ML's executor "
            f"plugin did not start this job; {_REMEDY}, or use another launcher"
        )
    found, hosts = _read_world(env)
    each = [tuple(range(nodes)), tuple(node for node in range(nodes) for _ in range(devices))]
    if found not in each:
        raise LaunchError(
            f"the run was planned for nodes={nodes} x devices={devices}, but Azure ML started {len(found)} processes "
            f"on {len(hosts)} nodes ({', '.join(hosts)}); set azureml_processes_per_node to "
            f"1 or {devices}, and check that the job requests nodes={nodes}"
        )
    prefix = tuple(shlex.split(env[_LAUNCH]))
    return Processes(prefix=prefix, nodes=found, hosts=hosts) if len(found) > 1 else None


def _read_world(env: Mapping[str, str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the node number of each process, by rank, and the address of each node."""
    try:
        world = json.loads(env.get(_WORLD, ""))
        nodes = tuple(int(process["node"]) for process in world)
        addresses = {int(process["node"]): str(process["address"]) for process in reversed(world)}
    except (ValueError, KeyError, TypeError):
        raise LaunchError(
            f"{_WORLD}={env.get(_WORLD, '')} does not list the job's processes; {_REMEDY}"
        ) from None
    return nodes, tuple(addresses[node] for node in sorted(addresses))


def main() -> None:
    """Replace this process by torchrun's agent of this node."""
    nodes, rank = _read_world(os.environ)[0], os.environ.get(_RANK, "")
    if not rank.isdigit() or int(rank) >= len(nodes):
        raise LaunchError(f"{_RANK}={rank} is not a rank of this job; {_REMEDY}")
    env, removed = without_place(os.environ)
    node = nodes[int(rank)]
    if removed:
        print(f"node {node}: not passed on to the ranks: {', '.join(removed)}", flush=True)
    agent = ["-m", "shardline.launch.stores", f"--node-rank={node}", *sys.argv[1:]]
    os.execve(sys.executable, [sys.executable, *agent], env)


if __name__ == "__main__":
    try:
        main()
    except LaunchError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
