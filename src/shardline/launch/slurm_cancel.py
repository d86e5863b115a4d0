"""What Ctrl-C does to a run on Slurm: every job of it is cancelled."""

import subprocess
from collections.abc import Sequence
from typing import Any

_PATIENCE_S = 60


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
        executor._job_submission_executor.shutdown(wait=wait, cancel_futures=True)
        # ended ones are passed over, where a list of ids would have scancel fail
        clusters = ["--clusters=all"] if executor._submitted_job_clusters else []
        command = ["scancel", "--name", executor.run_uuid, *clusters]
        refusal = _refusal(command)
    if refusal:
        executor.logger.error(
            f"the jobs of this run could not be cancelled ({refusal}) and may run on; "
            f"cancel them by: {' '.join(command)}"
        )


def _refusal(command: Sequence[str]) -> str:
    """Run a command, and return why it failed; nothing if it did not."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(getattr(error, "stderr", None) or error).strip()
    return ""
