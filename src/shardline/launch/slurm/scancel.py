"""Cancel every job of a Snakemake run on Slurm at Ctrl-C."""

import functools
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_PATIENCE_S = 60
_SUBMISSION_S = 60  # a shell script in place of sbatch may miss Ctrl-C
_LOOK_S = 1.0


def cancel_by_name() -> None:
    """Make Snakemake's Slurm plugin (2.8) cancel the jobs of a run by their common name.

    By default the plugin cancels the jobs in Snakemake's list. The list is empty while
    job states are queried, and never contains a job whose submission was interrupted.
    The plugin also submits the jobs that still wait. All these jobs would keep running.
    """
    from snakemake_executor_plugin_slurm import Executor

    Executor.cancel_jobs = _cancel_jobs
    _heed_ctrl_c()


class _Heeding(threading.Semaphore):
    """A semaphore on which the main thread does not wait without looking for signals."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking or timeout is not None:
            return super().acquire(blocking, timeout)
        while not super().acquire(timeout=_LOOK_S):
            pass
        return True


def _heed_ctrl_c() -> None:
    """Make Snakemake's scheduler handle a Ctrl-C that comes while it begins to wait for jobs.

    Python handles a signal in the main thread, between two instructions. If the signal comes after the last instruction
    before a wait, or another thread receives it, the main thread would wait until a job on the cluster ends.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    schedule = JobScheduler.schedule
    if hasattr(schedule, "__wrapped__"):
        return

    @functools.wraps(schedule)
    def heed(self: Any) -> Any:
        waits = getattr(self, "_open_jobs", None)  # private, so it may become something else
        if type(waits) is threading.Semaphore:
            waits.__class__ = _Heeding
        return schedule(self)

    JobScheduler.schedule = heed


def _cancel_jobs(executor: Any, _: list[Any]) -> None:
    """Cancel all jobs of a run, listed or not."""
    for wait in (False, True):  # cancel running jobs first: a submission may take long
        limit = threading.Timer(_SUBMISSION_S, _end_submissions, [executor])
        limit.start()
        executor._job_submission_executor.shutdown(wait=wait, cancel_futures=True)
        limit.cancel()
        # scancel skips ended jobs by name, but fails for a list of IDs that contains one
        clusters = ["--clusters=all"] if executor._submitted_job_clusters else []
        command = ["scancel", "--name", executor.run_uuid, *clusters]
        refusal = _refusal(command)
    if refusal:
        executor.logger.error(
            f"the jobs of this run could not be cancelled ({refusal}) and may keep running; "
            f"cancel them with: {' '.join(command)}"
        )


def _end_submissions(executor: Any) -> None:
    """Kill each sbatch of a run; a job that it submitted is cancelled by name afterwards."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            words = " ".join(child.cmdline())
            if "sbatch" in words and executor.run_uuid in words:
                executor.logger.error(
                    f"a submission is still running {_SUBMISSION_S} s after the request to stop; killing it"
                )
                for process in [child, *child.children(recursive=True)]:  # the shell first
                    with suppress(psutil.NoSuchProcess):
                        process.kill()


def _refusal(command: Sequence[str]) -> str:
    """Run a command; return its error, or an empty text if it succeeded."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(getattr(error, "stderr", None) or error).strip()
    return ""
