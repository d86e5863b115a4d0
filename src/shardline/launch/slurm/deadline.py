"""When a job's time ends, and how it is queued again by itself."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from shardline.core.errors import LaunchError
from shardline.launch.slurm.allocation import find_allocation

# The end may be moved in either direction while the job runs.
_ASK_AGAIN_S = 60.0
_TIMEOUT_S = 60
# How long Slurm may take to end a job that it queues again.
_END_S = 300.0
_SHARE = 0.25
_FOR_SAVING = 0.75  # of what is left; the rest is for ending the job


def watch_deadline(
    ask: Callable[[str, float], None], ended: threading.Event, *, end_of_job: Callable[[], tuple[float, float] | None],
    margin_s: float,
) -> None:  # fmt: skip
    """Ask for a stop some time before a job's end.

    Args:
        ask: is called with the reason `deadline`, and the seconds that are left for it.
        ended: set when there is nothing left to stop.
        end_of_job: returns start and end of the job, seconds since the epoch; None where none is
            known. TableEntry again and again, since an end may be put off.
        margin_s: seconds before the end; at most a quarter of the job's time.
    """
    while not ended.is_set():
        wait_s = _ASK_AGAIN_S
        if times := end_of_job():
            started, end = times
            left = end - min(margin_s, _SHARE * (end - started)) - time.time()
            if left <= 0:
                ask("deadline", max(1.0, _FOR_SAVING * (end - time.time())))
                return
            wait_s = min(left, wait_s)
        ended.wait(wait_s)


def end_of_job(
    env: Mapping[str, str], *, started: float, walltime_min: int
) -> tuple[float, float] | None:
    """Return start and end of this job, as Slurm reports now or the profile set.

    Args:
        started: of the attempt, seconds since the epoch.
        walltime_min: `runtime.walltime_min`; 0 is none.
    """
    if env.get("SLURM_JOB_ID"):
        with suppress(LaunchError):  # the controller is away: ask again later
            allocation = find_allocation(env)
            if allocation and allocation.ends:
                return allocation.began or started, allocation.ends
    return (started, started + 60 * walltime_min) if walltime_min else None


def leave_to_slurm(env: Mapping[str, str]) -> None:
    """Have Slurm queue this job again, and wait for its end; return where Slurm will not.

    A job that Slurm itself preempts is queued again by Slurm alone: twice would be once too often.
    """
    try:
        job = find_allocation(env)
    except LaunchError:  # it is being ended already
        return
    # the allocation that Snakemake itself was started in is its user's matter
    if not (job and job.is_own and job.may_requeue and job.is_running):
        return
    if not job.is_preempted:
        command = ["scontrol", "requeue", job.job_id]
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            logging.warning("%s failed: %s", " ".join(command), done.stderr.strip())
            return
    logging.info("Slurm job %s is queued again, and resumes from there", job.job_id)
    time.sleep(_END_S)  # cut short by the end of the job
