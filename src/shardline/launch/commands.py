"""The command line of each launcher.

Each command line depends on the plan and the program only.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shardline.config.resolved import ActualGeometry
from shardline.config.settings.config import Runtime
from shardline.core.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(ActualGeometry):
    """The ranks that a launcher starts, their machines and their resources.

    Attributes:
        run_id: ID of the run, which is also the ID of the rendezvous.
        cpus: CPUs of each rank.
        gpus: GPUs of each machine; 0 for ranks on CPUs.
        hosts: names of the machines, in order; empty for this machine alone.
        job_id: ID of the Slurm job that has the machines; empty outside of Slurm.
        port: port of the rendezvous on the first host.
        variables: names of the environment variables that every rank gets.
        runtime: settings of the profile. Values of variables in `pass_env` never reach a command line.
        is_root: whether this user is root. Open MPI rejects root without a special option.
        prefix: arguments that start a command on each process of an Azure ML job; else empty.
        processes: number of the Azure ML job's processes.
        files: small files to copy to the processes on other nodes.
        python: command that starts Python in the ranks' environment; arguments follow it.
    """

    run_id: str
    cpus: int = 1
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    job_id: str = ""
    port: int = 0
    variables: tuple[str, ...] = ()
    runtime: Runtime = field(default_factory=Runtime)
    is_root: bool = False
    prefix: tuple[str, ...] = ()
    processes: int = 1
    files: tuple[str, ...] = ()
    python: tuple[str, ...] = (sys.executable,)


def launch_command(launcher: str, program: Sequence[str], plan: LaunchPlan) -> list[str]:
    """Return the command line that starts every rank of a run.

    Args:
        launcher: `torchrun`, `srun`, `mpirun`, `azureml` or `none`.
        program: arguments after `python`, such as `-m shardline.training.rank run.json`.

    Raises:
        LaunchError: the launcher cannot start this plan.
    """
    if plan.nodes > 1 and not plan.hosts:
        raise LaunchError(
            f"nodes={plan.nodes}, but this job is not in a Slurm allocation and runtime.hosts is empty; "
            "use a cluster profile, list the machines in runtime.hosts, or set nodes=1"
        )
    return _COMMANDS[launcher](program, plan)


def _none(program: Sequence[str], plan: LaunchPlan) -> list[str]:
    if plan.job_id and plan.nodes > 1:
        raise LaunchError(
            f"nodes={plan.nodes}, but launcher=none cannot start ranks on the other nodes of Slurm job "
            f"{plan.job_id}; use launcher=srun, torchrun or mpirun"
        )
    if plan.nodes > 1:
        return _on_hosts(plan, [*plan.python, *program], each=plan.devices)
    if plan.devices > 1:
        raise LaunchError(
            f"devices={plan.devices}, but launcher=none starts one rank; use launcher=torchrun"
        )
    return [*plan.python, *program]


def _torchrun(program: Sequence[str], plan: LaunchPlan) -> list[str]:
    if plan.ranks == 1:
        return [*plan.python, *program]
    # port 0 on a single node: the agent picks a free port, so that two runs never share one
    endpoint = f"{plan.hosts[0]}:{plan.port}" if plan.nodes > 1 else "127.0.0.1:0"
    agent = [
        *plan.python, "-m", "shardline.launch.stores", *_geometry(plan),
        "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={plan.run_id}",
        f"--rdzv-conf=join_timeout={plan.runtime.rendezvous_timeout_s}",
        *(["--local-addr=127.0.0.1"] if plan.nodes == 1 else []),
        *plan.runtime.launcher_args,
        *program,
    ]  # fmt: skip
    if plan.nodes == 1:
        return agent
    if plan.job_id:
        return [*_step(plan, tasks_per_node=1, cpus=plan.cpus * plan.devices), *agent]
    return _on_hosts(plan, agent, each=0)


def _geometry(plan: LaunchPlan) -> list[str]:
    return [
        f"--nnodes={plan.nodes}", f"--nproc-per-node={plan.devices}", "--max-restarts=0",
        # without this, SIGUSR1 kills the agent and its ranks
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", f"--shutdown-timeout={plan.runtime.stop_grace_s}",
    ]  # fmt: skip


def _srun(program: Sequence[str], plan: LaunchPlan) -> list[str]:
    if not plan.job_id:
        raise LaunchError(
            "launcher=srun, but this process is not in a Slurm job (SLURM_JOB_ID is not set); "
            "use --profile slurm, or launcher=torchrun"
        )
    step = _step(plan, tasks_per_node=plan.devices, cpus=plan.cpus)
    return [*step, *plan.runtime.launcher_args, *plan.python, *program]


def _step(plan: LaunchPlan, *, tasks_per_node: int, cpus: int) -> list[str]:
    """Return the srun command of a step. It sets the whole geometry, so that the step inherits none."""
    return [
        "srun",
        f"--nodes={plan.nodes}",
        f"--ntasks={plan.nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={cpus}",
        *([f"--gres=gpu:{plan.gpus}"] if plan.gpus else []),
        "--distribution=block",
        "--export=ALL",
        "--mpi=none",
        "--overlap",  # this job may itself run in a step
        "--kill-on-bad-exit=1",
        "--unbuffered",
    ]


def _mpirun(program: Sequence[str], plan: LaunchPlan) -> list[str]:
    command = ["mpirun", "-np", str(plan.ranks)]
    if not plan.job_id:
        hosts = plan.hosts if plan.nodes > 1 else ("localhost",)
        command += ["--host", ",".join(f"{host}:{plan.devices}" for host in hosts)]
    command += ["-bind-to", "none", "-map-by", "slot"]
    if plan.is_root:
        command.append("--allow-run-as-root")
    if plan.nodes > 1 and not plan.job_id:
        command += ["--mca", "plm_rsh_agent", plan.runtime.remote_shell]
    if interface := plan.runtime.interface:
        command += ["--mca", "btl_tcp_if_include", interface]
        command += ["--mca", "oob_tcp_if_include", interface]
    for name in (*plan.variables, *plan.runtime.pass_env):
        command += ["-x", name]
    return [*command, *plan.runtime.launcher_args, *plan.python, *program]


def _on_hosts(plan: LaunchPlan, command: Sequence[str], *, each: int) -> list[str]:
    """Return the command that starts another command on each host.

    Args:
        each: ranks per host. Each rank gets its place from environment variables.
            0: start the command once per host; it finds the ranks' places itself.
    """
    return [
        sys.executable, "-m", "shardline.launch.host_commands",
        f"--hosts={','.join(plan.hosts)}",
        f"--ranks-per-host={each}",
        f"--port={plan.port}",
        f"--shell={plan.runtime.remote_shell}",
        f"--variables={','.join(plan.variables)}",
        *([f"--passed={','.join(plan.runtime.pass_env)}"] if plan.runtime.pass_env else []),
        "--", *command,
    ]  # fmt: skip


def _azureml(program: Sequence[str], plan: LaunchPlan) -> list[str]:
    if plan.nodes == plan.processes == 1:
        return _torchrun(program, plan)
    start = [
        *plan.prefix,
        *(word for path in plan.files for word in ("--file", path)),
        *(word for name in plan.variables for word in ("--env", name)),
        "--",
    ]
    if plan.processes == plan.ranks:
        return [*start, *plan.python, *program]
    # static rendezvous: the first node gets rank 0, whose outputs Snakemake expects on that node
    return [
        *start,
        *plan.python, "-m", "shardline.launch.azureml", *_geometry(plan),
        "--rdzv-backend=static", f"--master-addr={plan.hosts[0]}", f"--master-port={plan.port}",
        f"--rdzv-id={plan.run_id}", f"--rdzv-conf=timeout={plan.runtime.rendezvous_timeout_s}",
        *plan.runtime.launcher_args,
        *program,
    ]  # fmt: skip


_COMMANDS: dict[str, Callable[[Sequence[str], LaunchPlan], list[str]]] = {
    "none": _none,
    "torchrun": _torchrun,
    "srun": _srun,
    "mpirun": _mpirun,
    "azureml": _azureml,
}
LAUNCHERS = tuple(_COMMANDS)
