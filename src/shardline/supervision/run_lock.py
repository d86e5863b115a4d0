"""One job trains a run at a time; another one waits for it."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.files import read_json, utc_stamp, write_json
from shardline.supervision.attempts import last_recorded_step

_HOLDER = "holder.json"


@contextmanager
def only_one(work: Path, run_id: str) -> Iterator[bool]:
    """Lock a run's folder; yields whether another job held it and was waited for.

    A job outlives a Snakemake that was killed, and two Snakemakes may share a store. The kernel
    releases the lock when its holder exits, however it exits.
    """
    from filelock import FileLock, Timeout

    lock, has_waited = FileLock(work / "lock"), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"{run_id} is being trained by {_holder(work)}; waiting until it exits"
        logging.warning("%s", message)
        with suppress(OSError):  # standard error may be closed
            print(message, file=sys.stderr, flush=True)
        lock.acquire(poll_interval=1)
        has_waited = True
    try:
        job = os.environ.get("SLURM_JOB_ID") or os.environ.get("AZUREML_RUN_ID")
        who = {"host": socket.gethostname(), "job": job, "pid": os.getpid(), "since": utc_stamp()}
        with suppress(DataError):  # a full disk: the lock alone counts
            write_json(work / _HOLDER, who)
        yield has_waited
    finally:
        lock.release()


def _holder(work: Path) -> str:
    """Return a description of the job that trains a run, as far as it is known."""
    try:
        who = read_json(work / _HOLDER, remedy="")
    except DataError:
        return "another job"
    job = f", job {who['job']}" if who["job"] else ""
    step = last_recorded_step(work)
    place = f"process {who['pid']} on {who['host']}{job}, since {who['since']}"
    return f"another job ({place}{f', now at step {step}' if step else ''})"
