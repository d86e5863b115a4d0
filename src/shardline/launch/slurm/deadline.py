"""Stop a job before its time limit, and have Slurm requeue it."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from shardline.core.errors import LaunchError
from shardline.launch.slurm.allocation import find_allocation

# An administrator may move the end in either direction while the job runs.
_ASK_AGAIN_S = 60.0
_TIMEOUT_S = 60
# The longest that Slurm may take to end a job that it requeues.
_END_S = 300.0
_SHARE = 0.25
_FOR_SAVING = 0.75  # share of the remaining time; the rest is for ending the job


def watch_deadline(
    ask: Callable[[str, float], None], ended: threading.Event, *, end_of_job: Callable[[], tuple[float, float] | None],
    margin_s: float,
) -> None:  # fmt: skip
    """Request a stop some time before a job's end.

    Args:
        ask: called with the reason `deadline` and the seconds in which to stop.
        ended: event that is set when nothing is left to stop.
        end_of_job: returns start and end of the job, seconds since the epoch; None if unknown.
            It is called repeatedly, since the end may change.
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
    """Return start and end of this job, from Slurm or from the profile's limit.

    Args:
        started: start of the attempt, seconds since the epoch.
        walltime_min: `runtime.walltime_min`, minutes; 0 for no limit.
    """
    if env.get("SLURM_JOB_ID"):
        with suppress(LaunchError):  # the controller does not answer; the caller asks again later
            allocation = find_allocation(env)
            if allocation and allocation.ends:
                return allocation.began or started, allocation.ends
    return (started, started + 60 * walltime_min) if walltime_min else None


def leave_to_slurm(env: Mapping[str, str]) -> None:
    """Have Slurm requeue this job, and wait for the job's end; return if Slurm will not requeue it.

    Slurm itself requeues a job that it preempts, so no second requeue is requested then.
    """
    try:
        job = find_allocation(env)
    except LaunchError:  # the job is already ending
        return
    # the user decides about an allocation in which Snakemake itself runs
    if not (job and job.is_own and job.may_requeue and job.is_running):
        return
    if not job.is_preempted:
        command = ["scontrol", "requeue", job.name]
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            logging.warning("%s failed: %s", " ".join(command), done.stderr.strip())
            return
    logging.info("Slurm requeues job %s; the training resumes when the job runs again", job.name)
    time.sleep(_END_S)  # the job ends before
