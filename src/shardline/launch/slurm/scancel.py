"""What Ctrl-C does to a run on Slurm: every job of it is cancelled."""

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_PATIENCE_S = 60
_SUBMISSION_S = 60  # a shell script in the place of sbatch may miss the Ctrl-C


def cancel_by_name() -> None:
    """Have Snakemake's Slurm plugin (2.8) cancel the jobs of a run by the name that they share.

    By itself it cancels those that Snakemake lists. The list is empty while their states
    are asked for, and never has a job whose submission was cut short; the plugin even goes
    on to submit what waits for its turn. All these would run on with nobody to see it.
    """
    from snakemake_executor_plugin_slurm import Executor

    Executor.cancel_jobs = _cancel_jobs


def _cancel_jobs(executor: Any, _: list[Any]) -> None:
    """Cancel the jobs of a run, also those that are not listed."""
    for wait in (False, True):  # a submission may take long, and the running jobs are not to wait
        limit = threading.Timer(_SUBMISSION_S, _end_submissions, [executor])
        limit.start()
        executor._job_submission_executor.shutdown(wait=wait, cancel_futures=True)
        limit.cancel()
        # ended ones are passed over, where a list of ids would have scancel fail
        clusters = ["--clusters=all"] if executor._submitted_job_clusters else []
        command = ["scancel", "--name", executor.run_uuid, *clusters]
        refusal = _refusal(command)
    if refusal:
        executor.logger.error(
            f"the jobs of this run could not be cancelled ({refusal}) and may run on; "
            f"cancel them by: {' '.join(command)}"
        )


def _end_submissions(executor: Any) -> None:
    """Kill each sbatch of a run; a job that it has submitted is cancelled by its name afterwards."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            words = " ".join(child.cmdline())
            if "sbatch" in words and executor.run_uuid in words:
                executor.logger.error(
                    f"a submission has not ended {_SUBMISSION_S} s after the request to stop; it is killed"
                )
                for process in [child, *child.children(recursive=True)]:  # the shell first
                    with suppress(psutil.NoSuchProcess):
                        process.kill()


def _refusal(command: Sequence[str]) -> str:
    """Run a command, and return why it failed; nothing if it did not."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(getattr(error, "stderr", None) or error).strip()
    return ""
