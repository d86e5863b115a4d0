"""The message about a job that did not complete."""

import re

from snakemake_executor_plugin_azureml.client import Job, State
from snakemake_executor_plugin_azureml.errors import text_of
from snakemake_executor_plugin_azureml.logs import last_lines, relevant_logs
from snakemake_executor_plugin_azureml.service import Service

_LINES = 30
_PREEMPTED = re.compile(r"preempt|evict|reclaim|low.?priority", re.I)


def failure_message(service: Service, job: Job) -> str:
    """Return the service's reason, the last lines of the relevant logs, and the page in studio."""
    try:
        reason = service.reason(job.name)
    except Exception as error:  # the job's end is reported, whatever else cannot be read
        reason = f"(its reason cannot be read: {text_of(error)})"
    try:
        tails = service.logs(job.name)
    except Exception as error:
        tails = {}
        reason += f" (its logs cannot be read: {text_of(error)})"
    lines = [_what_happened(job, reason)]
    if job.url:
        lines.append(f"Azure ML studio: {job.url}")
    for log in relevant_logs(tails, reason):
        if tails[log].strip():
            lines.append(f"The end of {log}:")
            lines += [f"    {line}" for line in last_lines(tails[log], _LINES).splitlines()]
    return "\n".join(lines)


def _what_happened(job: Job, reason: str) -> str:
    if _PREEMPTED.search(reason):
        return (
            f"Azure ML job {job.name} was preempted (low priority) and was not started again; a "
            f"preemption is not a failure of the rule, and `retries` submits the job again. {reason}"
        )
    if job.state is State.CANCELED:
        return (
            f"Azure ML job {job.name} was cancelled, by a user or at its time limit (the "
            f"resource runtime). {reason}"
        ).rstrip()
    return f"Azure ML job {job.name} failed. {reason or 'The service gives no reason.'}"
