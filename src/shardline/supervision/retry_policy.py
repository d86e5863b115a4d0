"""Retry policy: reject a retry that would fail like the attempts before it."""

import re
from collections.abc import Sequence
from pathlib import Path

from shardline.core.errors import CrashLoop
from shardline.records.attempts import Attempt

# Ends that do not predict the next attempt: preemptions and machine failures
# may happen twice before the first save.
_BLAMELESS = ("sealed", "killed")
# Addresses, process IDs, times and counts differ between two failures of one kind.
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+([.,:]\d+)*(e[+-]?\d+)?", re.IGNORECASE)


def log_of_attempt(logs: Path, number: int) -> Path:
    """Return the path of a failed attempt's log in the folder of the ranks' logs."""
    return logs / f"attempt-{number}.log"


def check_retry(attempts: Sequence[Attempt], *, retry: int, saved_step: int, logs: Path) -> None:
    """Reject a retry that would fail like the attempts before it.

    Args:
        attempts: attempts so far, see `read_attempts`.
        retry: number of the next retry; 0 is a user's own command, which is never rejected.
        saved_step: optimiser step of the newest training checkpoint, 0 for none.
        logs: folder of the ranks' logs.

    Raises:
        CrashLoop: the retry is rejected; the message contains the error of the last attempt.
    """
    if not (retry and attempts):
        return
    last = attempts[-1]
    log = log_of_attempt(logs, len(attempts))
    remedy = f"fix the error, or find its cause (the log is {log}), and run the command again"
    if last.is_final:
        raise CrashLoop(
            f"not retried, since it would fail in the same way: {last.reason}; {remedy}"
        )
    if loop := crash_loop(attempts, saved_step=saved_step):
        raise CrashLoop(f"not retried, since {loop}: {last.reason}; {remedy}", last.reason or "")


def crash_loop(attempts: Sequence[Attempt], *, saved_step: int) -> str:
    """Return a description of the crash loop that the last two attempts form, else "".

    Args:
        saved_step: optimiser step of the newest training checkpoint, 0 for none.
    """
    if len(attempts) < 2 or not attempts[-1].retry:
        return ""
    before, last = attempts[-2:]
    if not _is_alike(before, last):
        return ""
    is_same = _kind(before.reason) == _kind(last.reason)
    if last.resumed_step is None:  # ended before its first step, or a script
        where = "with the same error" if is_same else ""
    elif before.resumed_step == last.resumed_step == saved_step:
        where = f"before they had saved more than step {saved_step}"
    else:
        is_there = before.last_step == last.last_step
        where = f"at step {last.last_step} with the same error" if is_same and is_there else ""
    return where and f"two attempts in a row ended {where}"


def _is_alike(before: Attempt, last: Attempt) -> bool:
    if last.end in _BLAMELESS or before.end != last.end:
        return False
    # a time limit that is too short for one save repeats; a preemption need not
    return last.end != "stopped" or {last.stop, before.stop} == {"deadline"}


def _kind(reason: str | None) -> str:
    return _NUMBERS.sub("N", reason or "")
