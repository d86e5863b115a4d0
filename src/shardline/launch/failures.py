"""What each rank that failed leaves for its job: the first tells the cause."""

import os
import platform
import re
import signal
import sys
import time
from pathlib import Path

from shardline.files import read_json, write_json

_FOLDER = "errors"

# How launchers tell that a signal ended a rank, which then left nothing itself.
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
# What a launcher itself sends to the ranks that are left.
_BY_LAUNCHER = ("SIGTERM", "SIGINT", "Terminated", "Exited with exit code")


def forget_failures(work: Path) -> None:
    """Delete what an earlier attempt left."""
    for path in (work / _FOLDER).glob("rank-*.json"):
        path.unlink()


def report_failure(work: Path, message: str, *, rank: int | None, log: Path | None) -> None:
    """Print a rank's message, and leave it where the job finds it.

    Args:
        work: the run's folder in the store.
        rank: None if this process could not find out.
        log: the file that holds the rank's output.
    """
    print(message, file=sys.stderr, flush=True)
    host = platform.node()
    name = f"rank-{host}-{os.getpid()}" if rank is None else f"rank-{rank}"
    folder = work / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "rank": rank,
        "host": host,
        "log": str(log) if log else None,
        "job": os.environ.get("SLURM_JOB_ID"),
        "time": time.time(),
        "message": message,
    }
    write_json(folder / f"{name}.json", document)


def first_failure(work: Path, ranks: int) -> str | None:
    """Return the message of the rank that failed first, and where that was; the others fail because it did.

    Args:
        ranks: how many there are; of one alone, nobody asks which.
    """
    found = [read_json(path, remedy="") for path in (work / _FOLDER).glob("rank-*.json")]
    if not found:
        return None
    first = min(found, key=lambda failure: failure["time"])
    if ranks == 1:
        return str(first["message"])
    who = "a rank" if first["rank"] is None else f"rank {first['rank']}"
    place = [f"{who} on {first['host']}"]
    if first["job"]:
        place.append(f"Slurm job {first['job']}")
    if first["log"]:
        place.append(f"its log is {first['log']}")
    return f"{', '.join(place)}: {first['message']}"


def killed_rank(output: str) -> str | None:
    """Return which rank a signal ended, in the words of the launcher; None if none was.

    The others fail because it did, and may say so before their launcher names it.

    Args:
        output: of the launcher and its ranks, all of this attempt.
    """
    found = [match for pattern in _ENDED for match in pattern.finditer(output)]
    if first := _SRUN_END.search(output):
        found.append(first)
    for match in found:
        how = match["signal"]
        name = signal.Signals(int(how)).name if how.isdigit() else how
        if not name.startswith(_BY_LAUNCHER):
            return (
                f"rank {match['rank']} on {match['host']} was ended by a signal ({name}): by hand, for want "
                "of memory or by a fault in compiled code; run the same command again to go on"
            )
    return None
