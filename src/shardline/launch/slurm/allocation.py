"""The Slurm allocation of this job: its nodes, CPUs and times."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from shardline.config.resolved import REMEDY
from shardline.core.errors import LaunchError
from shardline.launch.launched_world import expand_nodelist
from shardline.launch.slurm.sacct import job_fields

_TIMEOUT_S = 60
# Snakemake's Slurm plugin uses the ID of the Snakemake run as the job name.
_OF_SNAKEMAKE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_REMEDY = "run the job again, or ask the site's administrators if it happens often"


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The allocation of a Slurm job, as the controller reports it.

    Attributes:
        hosts: names of the nodes, in Slurm's order.
        cpus: CPUs of all nodes together.
        nodelist: the nodes as Slurm writes them, `n[1-2]`.
        restarts: number of requeues.
        queue_s: seconds in the queue, counted from the time at which the job was eligible; None
            if Snakemake did not submit this job but runs inside of it.
        is_own: whether Snakemake submitted this job.
        began: time of the start, seconds since the epoch.
        ends: time at which the time limit ends the job; None without a limit.
        name: name of the job for scontrol; the ID of an array's last task names all of its tasks.
        may_requeue: whether Slurm may requeue the job.
        is_running: whether the job is running, and not already ending.
        is_preempted: whether Slurm preempts the job and ends it after a grace time.
    """

    job_id: str
    hosts: tuple[str, ...]
    cpus: int
    nodelist: str
    restarts: int
    queue_s: float | None = None
    is_own: bool = False
    began: float | None = None
    ends: float | None = None
    name: str = ""
    may_requeue: bool = False
    is_running: bool = True
    is_preempted: bool = False


_OF_LAUNCH: dict[tuple[str, ...], Allocation | None] = {}


def find_allocation(env: Mapping[str, str]) -> Allocation | None:
    """Ask Slurm for the allocation of this job; return None outside of Slurm.

    Environment variables cannot be trusted here: an executor or an outer step may
    have removed or replaced them.

    Raises:
        LaunchError: the controller does not answer, or does not know the job.
    """
    if not (job_id := env.get("SLURM_JOB_ID", "")):
        return None
    return parse_job(job_id, _scontrol(job_id, env))


def allocation_of_launch(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that Slurm reported first in this process.

    The fields that a launch reads stay the same while the job runs. `ends` and
    `is_preempted` may change; `find_allocation` asks Slurm again for them.

    Raises:
        LaunchError: see `find_allocation`.
    """
    key = env.get("SLURM_JOB_ID", ""), env.get("SLURM_RESTART_COUNT", ""), env.get("PATH", "")
    if key not in _OF_LAUNCH:
        _OF_LAUNCH[key] = find_allocation(env)
    return _OF_LAUNCH[key]


def _scontrol(job_id: str, env: Mapping[str, str]) -> str:
    command = ["scontrol", "--oneliner", "show", "job", job_id]
    try:
        done = subprocess.run(
            command,
            env={**env, "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"SLURM_JOB_ID={job_id}, but scontrol, which lists the job's nodes, is not on this machine's "
            "PATH; add Slurm's commands to PATH, or unset SLURM_JOB_ID"
        ) from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip() or f"code {error.returncode}"
        raise LaunchError(f"{' '.join(command)} failed ({reason}); {_REMEDY}") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{' '.join(command)} did not answer within {_TIMEOUT_S} s; {_REMEDY}"
        ) from None
    return done.stdout


def parse_job(job_id: str, text: str) -> Allocation:
    """Parse the output of `scontrol --oneliner show job`.

    The last task of an array has the array's ID, for which Slurm lists all tasks.

    Raises:
        LaunchError: the job has no nodes.
    """
    listed = [job_fields(line) for line in text.splitlines()]
    fields = next((one for one in listed if one.get("JobId") == job_id), job_fields(text))
    nodelist = fields.get("NodeList", "")
    if nodelist in ("", "(null)"):
        raise LaunchError(
            f"Slurm job {job_id} has no nodes, state {fields.get('JobState', '?')}; {_REMEDY}"
        )
    is_own = bool(_OF_SNAKEMAKE.search(fields.get("JobName", "")))
    began = _time(fields, "StartTime")
    # a requeued job has a new SubmitTime, and may become eligible only later
    queued = [time for name in ("SubmitTime", "EligibleTime") if (time := _time(fields, name))]
    return Allocation(
        queue_s=max(0.0, began - max(queued)) if is_own and began and queued else None,
        job_id=job_id,
        hosts=tuple(expand_nodelist(nodelist)),
        cpus=int(fields.get("NumCPUs", "0")),
        nodelist=nodelist,
        restarts=int(fields.get("Restarts", "0")),
        is_own=is_own,
        began=began,
        name=_name_of(fields) or job_id,
        ends=_time(fields, "EndTime"),
        may_requeue=fields.get("Requeue") == "1",
        is_running=fields.get("JobState") == "RUNNING",
        is_preempted=_time(fields, "PreemptTime") is not None,
    )


def _name_of(fields: Mapping[str, str]) -> str:
    """Return the name of a task of an array; empty for other jobs."""
    array, task = fields.get("ArrayJobId", ""), fields.get("ArrayTaskId", "")
    return f"{array}_{task}" if array and task.isdigit() else ""


def _time(fields: Mapping[str, str], name: str) -> float | None:
    """Return a time in seconds since the epoch; None if unknown."""
    try:
        return datetime.fromisoformat(fields[name]).timestamp()
    except (KeyError, ValueError):  # "Unknown"
        return None


def check_allocation(allocation: Allocation, *, nodes: int, cpus: int) -> None:
    """Check that a job has the planned number of nodes, and enough CPUs.

    Args:
        cpus: CPUs that all ranks together use.

    Raises:
        LaunchError: the allocation does not fit; the message names the planned and the found numbers.
    """
    found = len(allocation.hosts)
    if found != nodes:
        hint = f", {REMEDY}" if found < nodes else ""
        raise LaunchError(
            f"Slurm job {allocation.job_id} has {found} nodes ({allocation.nodelist}), but the run was "
            f"planned for nodes={nodes}; submit it with --nodes={nodes}, as profiles/slurm does{hint}"
        )
    if allocation.cpus < cpus:
        raise LaunchError(
            f"Slurm job {allocation.job_id} has {allocation.cpus} CPUs, but the run was planned for {cpus}; "
            "lower runtime.threads_per_rank, or raise cpus_per_task"
        )


def restored_variables(allocation: Allocation, *, tasks_per_node: int) -> dict[str, str]:
    """Return the variables that Slurm sets for this job; mpirun reads its hosts from them."""
    nodes = len(allocation.hosts)
    return {
        "SLURM_JOB_ID": allocation.job_id,
        "SLURM_JOBID": allocation.job_id,
        "SLURM_JOB_NODELIST": allocation.nodelist,
        "SLURM_NODELIST": allocation.nodelist,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks_per_node),
        "SLURM_NPROCS": str(nodes * tasks_per_node),
        "SLURM_TASKS_PER_NODE": f"{tasks_per_node}(x{nodes})" if nodes > 1 else str(tasks_per_node),
    }
