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

from shardline.core.environment import without_place
from shardline.core.errors import LaunchError

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


def find_processes(env: Mapping[str, str]) -> Processes | None:
    """Read the job's processes; None where the node program does not run the job.

    Raises:
        LaunchError: the node program's list of processes cannot be read.
    """
    if not env.get(_LAUNCH):
        return None
    nodes, hosts = _read_world(env)
    return Processes(prefix=tuple(shlex.split(env[_LAUNCH])), nodes=nodes, hosts=hosts)


def _read_world(env: Mapping[str, str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the number of each process's node, by rank, and the address of each node."""
    try:
        world = json.loads(env.get(_WORLD, ""))
        nodes = tuple(int(process["node"]) for process in world)
        addresses = {int(process["node"]): str(process["address"]) for process in reversed(world)}
    except (ValueError, KeyError, TypeError):
        raise LaunchError(
            f"{_WORLD}={env.get(_WORLD, '')} does not list the job's processes; {_REMEDY}"
        ) from None
    return nodes, tuple(addresses[node] for node in sorted(addresses))


def check_processes(processes: Processes | None, *, nodes: int, devices: int) -> None:
    """Check that there is one process for each planned rank, or one for each planned node.

    Raises:
        LaunchError: names the planned and the started processes.
    """
    if processes is None:
        if nodes == 1:
            return
        raise LaunchError(
            f"nodes={nodes} and runtime.launcher=azureml, but {_LAUNCH} is not set, so this job was not "
            f"started by Azure ML's executor plugin; {_REMEDY}, or use another launcher"
        )
    each = [tuple(range(nodes)), tuple(node for node in range(nodes) for _ in range(devices))]
    if processes.nodes not in each:
        there = len(processes.nodes)
        raise LaunchError(
            f"the run was planned for nodes={nodes} x devices={devices}, but Azure ML started {there} processes "
            f"on {len(processes.hosts)} nodes ({', '.join(processes.hosts)}); set azureml_processes_per_node to "
            f"1 or {devices}, and check that the job requests nodes={nodes}"
        )


def main() -> None:
    """Become torchrun's agent of this node."""
    nodes, rank = _read_world(os.environ)[0], os.environ.get(_RANK, "")
    if not rank.isdigit() or int(rank) >= len(nodes):
        raise LaunchError(f"{_RANK}={rank} is no process of this job; {_REMEDY}")
    env, removed = without_place(os.environ)
    node = nodes[int(rank)]
    if removed:
        print(f"node {node}: not passed on to the ranks: {', '.join(removed)}", flush=True)
    command = [
        sys.executable,
        "-m",
        "shardline.launch.stores",
        f"--node-rank={node}",
        *sys.argv[1:],
    ]
    os.execve(sys.executable, command, env)


if __name__ == "__main__":
    try:
        main()
    except LaunchError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
