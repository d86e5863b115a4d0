"""Failure records of ranks, which the job reads; the first record names the cause."""

import os
import platform
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import DataError, is_final_end
from shardline.core.files import read_json, utc_stamp, write_json
from shardline.core.redaction import mask
from shardline.records.base import decode, encode
from shardline.records.failures import Failure
from shardline.supervision.watchdog.heartbeats import FOLDER, WANTED

_FOLDER = "errors"

# Launchers' messages about a rank that a signal ended; such a rank writes no failure record.
_ENDED = (
    re.compile(  # torchrun
        r"Root Cause \(first observed failure\):\n\[0\]:\n\s+time +: .*\n\s+host +: (?P<host>\S+)\n"
        r"\s+rank +: (?P<rank>\d+) .*\n\s+exitcode +: -(?P<signal>\d+) "
    ),
    re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)"),
)  # fmt: skip
_SRUN_END = re.compile(
    r"^srun: error: (?P<host>\S+): tasks? (?P<rank>[\d,-]+): (?P<signal>.+)$", re.M
)
# Signals that launchers send to the remaining ranks.
_BY_LAUNCHER = ("SIGTERM", "SIGINT", "Terminated", "Exited with exit code")


def reset_failures(work: Path) -> None:
    """Delete failure records and heartbeats of an earlier attempt."""
    for folder in (_FOLDER, FOLDER):
        for path in (work / folder).glob("rank-*.json"):
            path.unlink(missing_ok=True)
    (work / FOLDER / WANTED).unlink(missing_ok=True)


def report_failure(
    work: Path, message: str, *, rank: int | None, log: Path | None, kind: str = "failed",
    code: int = 1, step: int | None = None, stop: str | None = None,
) -> None:  # fmt: skip
    """Print a rank's error message, and record it for the job.

    Args:
        work: the run's folder in the store.
        rank: None if this process could not resolve its rank.
        log: file with the rank's output.
        kind: field of `Failure`, like `code`, `step` and `stop`.
    """
    message = mask(message)
    print(message, file=sys.stderr, flush=True)
    failure = Failure(
        sentence=message,
        when=utc_stamp(timespec="microseconds"),
        code=code,
        kind=kind,
        is_final=is_final_end(kind, code),
        log=str(log) if log else None,
        rank=rank,
        host=platform.node(),
        scheduled=os.environ.get("SLURM_JOB_ID"),
        step=step,
        stop=stop,
    )
    name = f"rank-{failure.host}-{os.getpid()}" if rank is None else f"rank-{rank}"
    if kind == "hung":
        name += ".hung"  # the rank may write its own record beside this one
    folder = work / _FOLDER
    with suppress(DataError):  # the store itself may be what failed
        write_json(folder / f"{name}.json", encode(failure))


def read_failures(work: Path) -> list[Failure]:
    """Return the failures of this attempt's ranks: hung ranks first, then killed ones, then by time."""
    paths = (work / _FOLDER).glob("rank-*.json")
    found = [decode(read_json(path, remedy=""), Failure, where=path, remedy="") for path in paths]
    return sorted(found, key=lambda one: (one.kind != "hung", not one.is_killed, one.when))


def first_failure(work: Path, ranks: int) -> str | None:
    """Return message and place of the first rank that failed; its failure is what ends the other ranks.

    Args:
        ranks: number of ranks; a single rank is not named.
    """
    if not (failures := read_failures(work)):
        return None
    first = failures[0]
    if ranks == 1 or first.kind == "hung" or first.is_killed:  # these messages name the rank
        return first.sentence
    who = "a rank" if first.rank is None else f"rank {first.rank}"
    place = [f"{who} on {first.host}"]
    if first.scheduled:
        place.append(f"Slurm job {first.scheduled}")
    if first.log:
        place.append(f"its log is {first.log}")
    return f"{', '.join(place)}: {first.sentence}"


def killed_rank(output: str) -> str | None:
    """Return a message about the rank that a signal killed, from the launcher's output; None if none was.

    Other ranks fail as a consequence, and may report that before the launcher names the killed rank.

    Args:
        output: output of the launcher and its ranks in this attempt.
    """
    found = [match for pattern in _ENDED for match in pattern.finditer(output)]
    if first := _SRUN_END.search(output):
        found.append(first)
    for match in found:
        how = match["signal"]
        name = signal.Signals(int(how)).name if how.isdigit() else how
        if not name.startswith(_BY_LAUNCHER):
            return (
                f"rank {match['rank']} on {match['host']} was killed by a signal ({name}): by hand, out of "
                "memory, or by a fault in compiled code; run the same command again to resume"
            )
    return None
