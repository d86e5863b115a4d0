"""Exit report: a watchdog's record of a rank that exited without one of its own."""

import re
import signal
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import DataError
from shardline.records.failures import Failure
from shardline.supervision.failures import read_failures, report_failure
from shardline.supervision.watchdog.heartbeats import Heartbeat
from shardline.supervision.watchdog.proc import exit_code_of, signal_name

# Messages of a rank that lost its peer; which of both is recorded first is a matter of milliseconds.
_LOST_PEER = re.compile(
    r"by peer|Broken pipe|remote process|Connection reset|Dist(Backend|Network|Store)Error"
)
# Sent by the launcher, for another reason.
_ORDERED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def report_exit(work: Path, heartbeat: Heartbeat, kills: int) -> None:
    """Record how a rank ended that could not do so itself, unless a cause is recorded already.

    Args:
        work: the run's folder in the store.
        heartbeat: the rank's last heartbeat.
        kills: processes that the kernel has just killed for lack of memory.
    """
    code = exit_code_of(heartbeat.pid)
    if code is None and kills:
        code = -signal.SIGKILL
    with suppress(DataError, OSError):
        if (code is not None and -code in _ORDERED) or any(map(_is_cause, read_failures(work))):
            return
        report_failure(
            work,
            exit_message(heartbeat, code, kills),
            rank=heartbeat.rank,
            log=None,
            code=code if code and code > 0 else 128 - (code or 0),
            step=heartbeat.step,
        )


def exit_message(heartbeat: Heartbeat, code: int | None, kills: int) -> str:
    """Return one sentence on a rank's exit.

    Args:
        code: its exit code, negative for a signal; None if it is not known.
        kills: see `report_exit`.
    """
    who = f"rank {heartbeat.rank} on {heartbeat.host}"
    where = f"at step {heartbeat.step} ({heartbeat.phase})"
    if code is not None and code >= 0:
        return f"{who} exited with code {code} {where} without an error message; see its log"
    how = "a signal" if code is None else f"a signal ({signal_name(-code)})"
    if kills and code == -signal.SIGKILL:
        return (
            f"{who} was killed by {how} {where}, when the kernel killed a process for lack of memory; request "
            "more memory, or lower data.workers or the batch"
        )
    return (
        f"{who} was killed by {how} {where}: by hand, out of memory, or by a fault in compiled code; "
        "run the same command again to resume"
    )


def _is_cause(failure: Failure) -> bool:
    """Whether a failure may be the cause of others; the loss of a peer is not one."""
    return not _LOST_PEER.search(failure.sentence) or failure.kind != "failed" or failure.is_killed
