"""The message about a job that did not complete: the service's reason, and the end of the relevant logs."""

import re
from collections.abc import Mapping

from snakemake_executor_plugin_azureml.client import RemoteJob, RemoteState
from snakemake_executor_plugin_azureml.errors import text_of
from snakemake_executor_plugin_azureml.service import Service

# The logs of the job's own processes, not of the service's machinery.
_OWN = re.compile(r"(^|/)(user_logs/|std_log|70_driver_log)")
# Failures as reported by the node program and by common runtimes.
_FIRST_FAILURE = re.compile(
    r"rank (?P<rank>\d+)\b[^\n]*(\b(exit|ended|failed|lost|killed)|error\b)", re.I
)
_FAILURE = re.compile(
    r"Traceback|\berror\b|\bexception\b|exit(ed)? (code|status|with)|killed", re.I
)
# The service's folder for logs after the first, second, ... preemption
_RETRY = re.compile(r"(^|/)retry_(\d+)/")
_TAIL_BYTES = 64 * 1024
_TIMEOUT_S = 30.0
MAX_LOGS = 64
_LINES = 30
_PREEMPTED = re.compile(r"preempt|evict|reclaim|low.?priority", re.I)


def failure_message(service: Service, job: RemoteJob) -> str:
    """Return the service's reason, the last lines of the relevant logs, and the studio page."""
    try:
        reason = service.reason(job.name)
    except Exception as error:  # the failure is reported even if the reason cannot be read
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
            lines += [f"    {line}" for line in tails[log].rstrip().splitlines()[-_LINES:]]
    return "\n".join(lines)


def _what_happened(job: RemoteJob, reason: str) -> str:
    if _PREEMPTED.search(reason):
        return (
            f"Azure ML job {job.name} was preempted (low priority) and was not started again; a "
            f"preemption is not a failure of the rule, and `retries` submits the job again. {reason}"
        )
    if job.state is RemoteState.CANCELED:
        return (
            f"Azure ML job {job.name} was cancelled, by a user or at its time limit (the "
            f"resource runtime). {reason}"
        ).rstrip()
    return f"Azure ML job {job.name} failed. {reason or 'The service gives no reason.'}"


def own_logs(names: Mapping[str, str]) -> dict[str, str]:
    """Return the logs of the job's processes, in order of rank; all logs if there are none.

    For a preempted job, only the logs of the last start: earlier starts did not fail.
    """
    own = [name for name in names if _OWN.search(name)] or list(names)
    last = max(map(_start, own), default=0)
    chosen = sorted((name for name in own if _start(name) == last), key=_natural)
    return {name: names[name] for name in chosen[:MAX_LOGS]}


def read_tails(urls: Mapping[str, str]) -> dict[str, str]:
    """Return the last part of each file behind a URL; unreadable files are left out."""
    import requests

    tails = {}
    with requests.Session() as session:
        for name, url in urls.items():
            try:
                head = session.head(url, timeout=_TIMEOUT_S)
                size = int(head.headers.get("Content-Length") or 0) if head.ok else 0
                # Azure's storage does not support ranges from the end.
                start = {"Range": f"bytes={size - _TAIL_BYTES}-"} if size > _TAIL_BYTES else {}
                answer = session.get(url, headers=start, timeout=_TIMEOUT_S)
                answer.raise_for_status()
            except requests.RequestException:
                continue  # the message is shown without this log
            tails[name] = answer.content[-_TAIL_BYTES:].decode(errors="replace")
    return tails


def relevant_logs(tails: Mapping[str, str], reason: str) -> list[str]:
    """Return the names of the logs that show the error: at most two.

    The first is the log of the process that failed first, if a log or the reason names its rank. With
    one process per node, a rank's number is not its process's. The log of rank 0, which ran the
    rule and reports its end, is always included.
    """
    first = _failing_log(tails, reason)
    return list(dict.fromkeys(name for name in (first, next(iter(tails), None)) if name))


def _failing_log(tails: Mapping[str, str], reason: str) -> str | None:
    """Return the log that a rank's failure, the service's reason or its own text points to."""
    for text in tails.values():
        for match in _FIRST_FAILURE.finditer(text):
            named = [name for name in tails if _rank(name) == int(match["rank"])]
            if named:
                return named[0]
            break
    named = [name for name in tails if name in reason]
    looks_failed = [name for name, text in tails.items() if _FAILURE.search(text)]
    return next(iter(named or looks_failed or tails), None)


def _rank(name: str) -> int | None:
    numbers = re.findall(r"\d+", name.rsplit("/", 1)[-1])
    return int(numbers[-1]) if numbers else None


def _start(name: str) -> int:
    match = _RETRY.search(name)
    return int(match[2]) if match else 0


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
