"""What a watchdog tells of a rank that ended without a word."""

import re
import signal
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import DataError
from shardline.supervision.failures import Failure, read_failures, report_failure
from shardline.supervision.watchdog.heartbeats import Sign
from shardline.supervision.watchdog.proc import exit_code_of, signal_name

# What a rank says whose peer is gone; which of both is heard of first is a matter of milliseconds.
_LOST_PEER = re.compile(
    r"by peer|Broken pipe|remote process|Connection reset|Dist(Backend|Network|Store)Error"
)
_ORDERED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # by the launcher, for another reason


def tell_end(work: Path, sign: Sign, kills: int) -> None:
    """Report how a rank ended that could not do so itself, unless others tell a cause already.

    Args:
        work: the run's folder in the store.
        sign: the rank's last.
        kills: processes that the kernel has just ended for want of memory.
    """
    code = exit_code_of(sign.pid)
    if code is None and kills:
        code = -signal.SIGKILL
    with suppress(DataError, OSError):
        if (code is not None and -code in _ORDERED) or any(map(_is_cause, read_failures(work))):
            return
        report_failure(
            work,
            end_message(sign, code, kills),
            rank=sign.rank,
            log=None,
            code=code if code and code > 0 else 128 - (code or 0),
            step=sign.step,
        )


def end_message(sign: Sign, code: int | None, kills: int) -> str:
    """Return one sentence on a rank's end.

    Args:
        code: its exit code, negative for a signal; None if it is not known.
        kills: see `tell_end`.
    """
    who = f"rank {sign.rank} on {sign.host}"
    where = f"at step {sign.step} ({sign.phase})"
    if code is not None and code >= 0:
        return f"{who} ended with code {code} {where} and told nothing; see its log"
    how = "a signal" if code is None else f"a signal ({signal_name(-code)})"
    if kills and code == -signal.SIGKILL:
        return (
            f"{who} was ended by {how} {where}, when the kernel ended a process for want of memory; ask for "
            "more memory, or lower data.workers or the batch"
        )
    return (
        f"{who} was ended by {how} {where}: by hand, for want of memory or by a fault in compiled code; "
        "run the same command again to go on"
    )


def _is_cause(failure: Failure) -> bool:
    """Whether a rank's failure may be why others end; that it lost a peer is none."""
    return not _LOST_PEER.search(failure.message) or failure.kind != "failed" or failure.is_killed
