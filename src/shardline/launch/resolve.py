"""Resolve this process's place among the ranks from the variables of any launcher.

Launchers nest: srun starts one torchrun per node, which starts the ranks; Slurm
starts mpirun's daemons, which start the ranks. Each level leaves its variables
to its children. The innermost complete level determines the place. The levels
around it must be able to have started it.
"""

from collections.abc import Mapping, Sequence

from shardline.core.errors import LaunchError
from shardline.core.world import World
from shardline.launch.launched_world import (
    check_numbers,
    derived_port,
    expand_nodelist,
    expand_tasks,
    is_loopback,
)
from shardline.launch.levels import (
    PLACE,
    LauncherEnvironment,
    first_set,
    integer,
    is_azure,
    mpi_level,
    slurm_level,
    torch_level,
)

_AZURE_PORT = 6105  # the port that Azure Machine Learning sets for its PyTorch jobs
_AZURE_ADDRESSES = ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "MASTER_IP")


def resolve_world(env: Mapping[str, str]) -> World:
    """Read this process's place in the job from launcher variables.

    Levels, from the innermost: torch's variables (torchrun, torch.distributed.launch,
    Azure Machine Learning, Kubernetes), MPI's (Open MPI, MPICH, Intel MPI), the
    Slurm step. `SHARDLINE_HOSTS` may list the nodes, by node rank.

    Args:
        env: process environment; read, never written. If no variable is set,
            there is one process. A partial set is an error: with defaults for
            the rest, two processes would be rank 0.

    Returns:
        World with 0 <= rank < world_size and 0 <= local_rank < local_world_size
        (counts of processes), ranks counted node by node.

    Raises:
        LaunchError: a variable is missing, not an integer, out of range or
            contradicts another; the message names the variable and its value.
    """
    levels = [
        level for level in (torch_level(env), mpi_level(env), slurm_level(env)) if level.found
    ]
    complete = next((level for level in levels if not level.missing), None)
    if complete is None:
        return _without_launcher(env, levels)
    at = levels.index(complete)
    for level in levels[:at]:
        _check_remains(env, level, complete)
    for level in levels[at + 1 :]:
        if "world_size" in level.values:
            _check_nesting(complete, level, levels)
    return _world(env, complete)


def _check_remains(
    env: Mapping[str, str], partial: LauncherEnvironment, level: LauncherEnvironment
) -> None:
    """Reject variables of an incomplete inner level that contradict the complete level."""
    if partial.sets_all:
        raise _partial(partial)
    for name, value in partial.values.items():
        if level.values.get(name, value) != value:
            raise LaunchError(
                f"{partial.origins[name]}, but {level.origins[name]} ({level.launcher}); "
                f"unset the former, or set also {', '.join(partial.missing)}"
            )


def _check_nesting(
    inner: LauncherEnvironment, outer: LauncherEnvironment, levels: Sequence[LauncherEnvironment]
) -> None:
    """Reject an outer level that cannot have started the inner level.

    An outer level starts the ranks, one agent or daemon per node, or one process
    that starts all ranks. Under Slurm, mpirun starts daemons on all nodes but its
    own, and the ranks inherit the variables of the daemons' steps.
    """
    size, nodes = outer.values["world_size"], inner.nodes
    same = all(outer.values.get(name) == inner.values[name] for name in ("rank", "world_size"))
    if inner.launcher == "torchrun" and outer.launcher == "srun":
        same = False  # srun's tasks are agents; one task per rank would make several worlds
    daemons = outer.launcher == "srun" and any(
        level.launcher in ("mpirun", "mpiexec") for level in levels
    )
    if not (same or size in (1, nodes) or (daemons and size == nodes - 1)):
        raise LaunchError(
            f"{inner.origins['rank']} {inner.origins['world_size']} on {nodes} nodes ({inner.launcher}), but "
            f"{outer.origins.get('rank', '')} {outer.origins['world_size']} ({outer.launcher}); "
            "start either the ranks or one agent per node, and unset the variables that another launcher left"
        )


def _without_launcher(env: Mapping[str, str], levels: Sequence[LauncherEnvironment]) -> World:
    """Return the world of one process, unless a variable shows that there are more."""
    if levels:
        raise _partial(levels[0])
    if lost := [
        name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "PMIX_RANK") if env.get(name)
    ]:
        raise LaunchError(
            f"{', '.join(lost)} set but RANK, WORLD_SIZE not; "
            "start the ranks with a launcher that sets all of them, or unset all for one process"
        )
    job = first_set(env, "SLURM_JOB_ID", "SLURM_JOBID")
    if env.get(job):
        count = first_set(env, "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE")
        tasks = sum(expand_tasks(env[count])) if env.get(count) else 1
        if tasks != 1 or (env.get("SLURM_PROCID") or "0") != "0":
            raise LaunchError(
                f"{count}={env.get(count, '')} in Slurm job {env[job]}, but this process is not in a "
                "step of the job (SLURM_STEP_ID); start the ranks with srun, or submit with --ntasks=1"
            )
    one = dict.fromkeys(
        (*PLACE, "master_addr", "master_port"), "one process: no launcher's variables"
    )
    return World(
        rank=0, local_rank=0, world_size=1, local_world_size=1,
        master_addr="127.0.0.1", master_port=0, launcher="none", origins=one,
    )  # fmt: skip


def _partial(level: LauncherEnvironment) -> LaunchError:
    return LaunchError(
        f"{', '.join(level.found)} set but {', '.join(level.missing)} not; "
        "start the ranks with a launcher that sets all of them, or unset all for one process"
    )


def _world(env: Mapping[str, str], level: LauncherEnvironment) -> World:
    """Add rank 0's address and port, and check that all numbers agree."""
    hosts, hosts_origin = _hosts(env, level)
    address, address_origin = _address(env, level, hosts)
    port, port_origin = _port(env, level)
    world = World(
        **{name: level.values[name] for name in PLACE},
        master_addr=address, master_port=port, launcher=level.launcher, hosts=hosts,
        origins={
            "node_rank": "rank // local_world_size",
            "num_nodes": "world_size // local_world_size",
            **level.origins,
            "master_addr": address_origin,
            "master_port": port_origin,
            **({"hosts": hosts_origin} if hosts else {}),
        },
    )  # fmt: skip
    check_numbers(world)
    if level.values.get("node_rank", world.node_rank) != world.node_rank:
        raise LaunchError(
            f"{level.origins['node_rank']}, but {level.origins['rank']} // "
            f"{world.local_world_size} is {world.node_rank}; number the ranks node by node "
            "(srun --distribution=block, mpirun --map-by slot)"
        )
    return world


def _hosts(env: Mapping[str, str], level: LauncherEnvironment) -> tuple[tuple[str, ...], str]:
    """Return the nodes' names by node rank; unknown for torchrun, which numbers nodes on arrival."""
    if level.launcher == "torchrun" and level.nodes > 1:
        return (), ""
    if text := env.get("SHARDLINE_HOSTS"):
        return expand_nodelist(text), f"SHARDLINE_HOSTS={text}"
    if level.launcher == "srun":
        name = first_set(env, "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
        hosts = expand_nodelist(env[name]) if env.get(name) else ()
        # a longer list is the job's; the nodes of the step are then unknown
        if len(hosts) == level.nodes:
            return hosts, f"{name}={env[name]}"
    return (), ""


def _address(
    env: Mapping[str, str], level: LauncherEnvironment, hosts: Sequence[str]
) -> tuple[str, str]:
    """Find the address of rank 0's node; ranks on a single node may use its loopback address."""
    for name in ("MASTER_ADDR", *(_AZURE_ADDRESSES if is_azure(env) else ())):
        address = env.get(name, "")
        if name == "AZ_BATCH_MASTER_NODE":
            address = address.rpartition(":")[0] or address
        if address and not (name in _AZURE_ADDRESSES and is_loopback(address)):
            return address, f"{name}={env[name]}"
    if level.nodes <= 1:
        return "127.0.0.1", "all ranks on one node"
    if level.launcher == "srun" and hosts:
        return hosts[0], "first of hosts"
    names = ("MASTER_ADDR", *(_AZURE_ADDRESSES if is_azure(env) else ()))
    raise LaunchError(
        f"{level.origins['rank']}, {level.origins['world_size']} on {level.nodes} nodes ({level.launcher}), but "
        f"no {' or '.join(names)} names rank 0's node; set MASTER_ADDR to its name, as Shardline's launchers do"
    )


def _port(env: Mapping[str, str], level: LauncherEnvironment) -> tuple[int, str]:
    """Find the port of rank 0, which must be the same on all ranks."""
    if env.get("MASTER_PORT"):
        if not env.get("MASTER_ADDR") and not is_azure(env):
            raise LaunchError(
                "MASTER_PORT is set but MASTER_ADDR is not; set both, or neither under srun"
            )
        return integer(env, "MASTER_PORT"), f"MASTER_PORT={env['MASTER_PORT']}"
    if is_azure(env):
        node = env.get("AZ_BATCH_MASTER_NODE", "")
        port = node.rpartition(":")[2]
        if port.isdigit() and ":" in node:
            return int(port), f"AZ_BATCH_MASTER_NODE={node}"
        return _AZURE_PORT, "Azure Machine Learning's own"
    if level.values["world_size"] == 1:
        return 0, "one process"
    job = first_set(env, "SLURM_JOB_ID", "SLURM_JOBID")
    if level.launcher == "srun" and env.get(job) and not env.get("MASTER_ADDR"):
        step = env[first_set(env, "SLURM_STEP_ID", "SLURM_STEPID")]
        return derived_port(f"{env[job]}.{step}"), f"derived from {job}={env[job]}, step {step}"
    raise LaunchError(
        f"{level.origins['rank']}, {level.origins['world_size']} ({level.launcher}), but MASTER_PORT is not set; "
        "pass MASTER_ADDR and MASTER_PORT to all ranks (mpirun -x), as Shardline's launchers do"
    )
