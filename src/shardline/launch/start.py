"""Prepare the command line and environment that start the ranks of a run."""

import logging
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from shardline.config.resolved import REMEDY, ActualGeometry, PlannedGeometry, fit_geometry
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import LaunchError
from shardline.core.rank_environment import check_passed, rank_variables, without_place
from shardline.core.redaction import PASSED, mask
from shardline.core.variables import clean, ignored
from shardline.launch.azureml import find_processes
from shardline.launch.commands import LaunchPlan, launch_command
from shardline.launch.export import export_world
from shardline.launch.launched_world import derived_port
from shardline.launch.resolve import resolve_world
from shardline.launch.slurm.allocation import (
    Allocation,
    allocation_of_launch,
    check_allocation,
    restored_variables,
)

_PORTS_TRIED = 20


@dataclass(frozen=True, kw_only=True)
class Start:
    """The command that starts the ranks, and its environment.

    Attributes:
        command: the launcher's command line.
        env: environment of the command.
        plan: geometry and resources, for the log.
    """

    command: list[str]
    env: dict[str, str]
    plan: LaunchPlan

    @property
    def summary(self) -> str:
        """The geometry, machines and port in one line, then the command."""
        plan = self.plan
        place = f" on {', '.join(plan.hosts)}" if plan.hosts else ""
        job = f", Slurm job {plan.job_id}" if plan.job_id else ""
        port = f", meeting at port {plan.port}" if plan.port else ""
        return (
            f"{plan.ranks} ranks, nodes={plan.nodes} x devices={plan.devices}{place}{job}{port}; "
            f"{plan.cpus} CPUs each\n{mask(shlex.join(self.command))}"
        )


def prepare_start(
    program: Sequence[str], *, run_id: str, geometry: ActualGeometry, accelerator: str,
    runtime: Runtime, env: Mapping[str, str], num_cpus: int, files: Sequence[str] = (),
    python: Sequence[str] = (sys.executable,), threads: int | None = None,
) -> Start:  # fmt: skip
    """Prepare the command that starts the ranks on this machine or from it.

    Args:
        program: arguments after `python`.
        geometry: the ranks to start.
        accelerator: setting of the run: `auto`, `cpu` or `gpu`.
        runtime: settings of the profile.
        env: environment of this job.
        num_cpus: CPUs that this process may use.
        files: small files that the ranks read, for nodes that do not share this node's folder.
        python: command that starts Python in the ranks' environment; arguments follow it.
        threads: CPU threads of a rank where the training began; None for a new training.

    Raises:
        LaunchError: machines or resources are missing, or the launcher cannot start the ranks.
    """
    nodes, devices, launcher = geometry.nodes, geometry.devices, runtime.launcher
    is_azure = launcher == "azureml"
    processes = find_processes(env, nodes=nodes, devices=devices) if is_azure else None
    is_slurm = launcher in ("srun", "mpirun") or (nodes > 1 and not is_azure)
    allocation = allocation_of_launch(env) if is_slurm and not runtime.hosts else None
    hosts = processes.hosts if processes else _hosts(allocation, runtime.hosts, nodes)
    cpus = _cpus_per_rank(allocation, runtime, geometry, num_cpus, threads)
    if allocation:
        check_allocation(allocation, nodes=nodes, cpus=cpus * geometry.ranks)
    variables = rank_variables(cpus, runtime.variables, runtime.interface)
    check_passed(runtime.pass_env, env)
    if runtime.pass_env:
        variables[PASSED] = ",".join(runtime.pass_env)  # the ranks mask these values
    # Azure ML then sets each rank's place, as a launcher does
    is_direct = processes is not None and len(processes.nodes) == geometry.ranks
    kept, removed = (dict(env), []) if is_direct else without_place(env)
    if removed:
        logging.info("not passed on to the ranks: %s", ", ".join(removed))
    if changing := clean(kept):
        logging.info("%s", ignored(changing))
    place: dict[str, str] = {}
    port = 0
    if hosts or launcher == "mpirun":
        port, place = _meeting_place(allocation, hosts, run_id, is_here=processes is not None)
    if is_direct:
        place["LOCAL_WORLD_SIZE"] = str(devices)  # Azure ML does not set it
    elif launcher in ("torchrun", "azureml"):
        place = {}  # the agents set the place of each rank
    named = tuple(place)
    if launcher == "mpirun" and allocation:
        place |= restored_variables(allocation, tasks_per_node=devices)
    plan = LaunchPlan(
        run_id=run_id,
        nodes=nodes,
        devices=devices,
        cpus=cpus,
        gpus=devices if accelerator == "gpu" else 0,
        hosts=hosts,
        job_id=allocation.job_id if allocation else "",
        port=port,
        variables=(*variables, *named),
        runtime=runtime,
        is_root=os.geteuid() == 0,
        prefix=processes.prefix if processes else (),
        processes=len(processes.nodes) if processes else 1,
        files=tuple(files),
        python=tuple(python),
    )
    if plan.ranks == 1 and launcher in ("none", "torchrun", "azureml"):
        place = export_world(resolve_world({}))
    command = launch_command(launcher, program, plan)
    return Start(command=command, env={**kept, **variables, **place}, plan=plan)


def find_geometry(
    settings: RunSettings, *, run: str, runtime: Runtime, env: Mapping[str, str],
    num_cpus: int, num_gpus: int,
) -> ActualGeometry:  # fmt: skip
    """Return the nodes and ranks that a run gets: as planned, or fewer if the run is elastic.

    Args:
        settings: settings of the run, as planned.
        run: name of the run, for errors.
        num_cpus: CPUs that this process may use.
        num_gpus: GPUs that this process sees.

    Raises:
        LaunchError: the global batch does not divide over the available machines.
    """
    planned = PlannedGeometry.of(settings)
    nodes, devices = planned.nodes, planned.devices
    if not planned.elastic or runtime.launcher == "azureml":
        return ActualGeometry(nodes=nodes, devices=devices)
    if nodes == 1:
        most = devices
        if settings.accelerator != "cpu" and num_gpus:
            most = num_gpus
        elif not runtime.oversubscribe and not env.get("SLURM_JOB_ID"):
            most = num_cpus
        return fit_geometry(planned, run=run, nodes=1, devices=most)
    if runtime.hosts:
        return fit_geometry(planned, run=run, nodes=len(runtime.hosts), devices=devices)
    allocation = allocation_of_launch(env)
    held = len(allocation.hosts) if allocation else nodes
    return fit_geometry(planned, run=run, nodes=held, devices=devices, uses_all=True)


def _hosts(allocation: Allocation | None, listed: Sequence[str], nodes: int) -> tuple[str, ...]:
    if allocation:
        return allocation.hosts
    if nodes == 1:
        return ()
    if listed and len(listed) < nodes:
        raise LaunchError(
            f"nodes={nodes}, but runtime.hosts lists {len(listed)} ({', '.join(listed)}); "
            f"list more hosts, lower nodes, {REMEDY}"
        )
    return tuple(listed[:nodes])


def _meeting_place(
    allocation: Allocation | None, hosts: Sequence[str], run_id: str, *, is_here: bool
) -> tuple[int, dict[str, str]]:
    """Return the rendezvous port, and the variables that pass the rendezvous to the ranks.

    Args:
        is_here: whether the first host is this machine, under any name.
    """
    address = hosts[0] if len(hosts) > 1 else "127.0.0.1"
    job = f"{allocation.job_id}.{allocation.restarts}" if allocation else f"{run_id}.{os.getpid()}"
    port = free_port(job, socket.gethostname() if is_here else address)
    place = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    if hosts:
        place["SHARDLINE_HOSTS"] = ",".join(hosts)
    return port, place


def _cpus_per_rank(
    allocation: Allocation | None, runtime: Runtime, geometry: ActualGeometry, num_cpus: int,
    begun: int | None,
) -> int:  # fmt: skip
    """Return the CPU threads of a rank. On this machine they depend neither on its cores nor on other runs."""
    if runtime.threads_per_rank:
        return int(runtime.threads_per_rank)
    if allocation:
        return max(1, allocation.cpus // geometry.ranks)
    if begun:
        return begun
    # an Azure ML job has its nodes for itself
    return max(1, num_cpus // geometry.devices) if runtime.launcher == "azureml" else 1


def free_port(job: str, host: str) -> int:
    """Return a rendezvous port that follows from the job, so that all ranks agree.

    Taken ports of this machine are logged and skipped. Ports of another host
    cannot be checked from here.

    Raises:
        LaunchError: all tried ports are taken.
    """
    is_here = host in ("127.0.0.1", "localhost", socket.gethostname(), socket.getfqdn())
    for attempt in range(_PORTS_TRIED):
        port = derived_port(job, attempt)
        if not is_here or _is_free(port):
            return port
        logging.warning("port %d is taken on %s; trying the next port", port, host)
    raise LaunchError(
        f"{_PORTS_TRIED} ports, starting with {derived_port(job)}, are all taken on {host}; "
        "stop the programs that use them (`ss -ltnp` lists them)"
    )


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError:
            return False
    return True
