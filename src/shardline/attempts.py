"""The attempts at a run's training: `attempts.jsonl` in its folder of the store, one line for each.

The job that starts the ranks writes a line when it begins and completes it when it ends. Where the
job itself was killed, the next attempt completes the line, as well as can be told from what is left.
"""

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardline.errors import DataError
from shardline.files import write_bytes

# What a training writes as it goes: the youngest of them is its last sign of life.
_SIGNS = ("metrics.jsonl", "checkpoints/*", "output/*")
_TAIL_BYTES = 65536

Attempt = dict[str, Any]


def read_attempts(work: Path) -> list[Attempt]:
    """Return the attempts, the oldest first; a torn last line is dropped.

    Each has `host`, `job` (of the scheduler, or None), `queue_s` (None where no scheduler tells),
    `started`, `ended` (UTC), `end` (`sealed`; `failed`: a rank failed; `killed`: told to stop, or
    gone without a word; None while it runs), `resumed_step` and `last_step` (optimiser steps, None
    where unknown) and `lost_s`: seconds whose work a later attempt had to do again.
    """
    found = []
    with suppress(FileNotFoundError):
        for line in _file(work).read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
    return found


def begin_attempt(
    work: Path, *, job: str | None = None, queue_s: float | None = None, started: float | None = None
) -> int:  # fmt: skip
    """Write the line of a new attempt, complete that of one that was killed, and return its number.

    Args:
        work: the run's folder in the store.
        job: the scheduler's number of the job.
        queue_s: seconds that the job waited for its machines.
        started: seconds since the epoch; now if None.

    Returns:
        1 for the first attempt.
    """
    attempts = read_attempts(work)
    if attempts and attempts[-1]["end"] is None:
        _complete(work, attempts[-1], "killed", _last_sign(work, attempts[-1]))
    attempts.append(
        {
            "host": socket.gethostname(),
            "job": job,
            "queue_s": queue_s,
            "started": _stamp(time.time() if started is None else started),
            **dict.fromkeys(("ended", "end", "resumed_step", "last_step", "lost_s")),
        }
    )
    _write(work, attempts)
    return len(attempts)


@contextmanager
def attempted(work: Path, **known: Any) -> Iterator[int]:
    """Keep an attempt's line while a job trains; gives its number. See `begin_attempt`."""
    number = begin_attempt(work, **known)
    try:
        yield number
    except KeyboardInterrupt:
        _end(work, "killed")
        raise
    except BaseException:
        _end(work, "failed")
        raise
    _end(work, "sealed")


def note_resumed(work: Path, number: int, step: int, kept_s: Mapping[int, float]) -> None:
    """Note where an attempt goes on from, and what those before it did in vain.

    Args:
        number: the attempt's.
        step: optimiser step of the state that it goes on from.
        kept_s: seconds of earlier attempts, by number, whose work is in that state.
    """
    attempts = read_attempts(work)
    for earlier, attempt in enumerate(attempts[: number - 1], 1):
        attempt["lost_s"] = round(max(0.0, duration_s(attempt) - kept_s.get(earlier, 0.0)), 3)
    attempts[number - 1]["resumed_step"] = step
    _write(work, attempts)


def sealed_log(work: Path) -> list[Attempt]:
    """Return the attempts as they are sealed with the result of the last of them."""
    return _ended(work, "sealed")


def duration_s(attempt: Attempt) -> float:
    """Return the seconds from an attempt's start to its end."""
    return _seconds(attempt["ended"]) - _seconds(attempt["started"])


def started_s(attempt: Attempt) -> float:
    """Return an attempt's start, in seconds since the epoch."""
    return _seconds(attempt["started"])


def last_recorded_step(work: Path) -> int | None:
    """Return the last optimiser step in a training's metrics, None if there is none."""
    try:
        with (work / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))  # a long training's file is large
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, TypeError, KeyError):
            continue  # the line that is being written
    return None


def _end(work: Path, how: str) -> None:
    with suppress(DataError):  # a full disk must not hide why the training ended
        _write(work, _ended(work, how))


def _ended(work: Path, how: str) -> list[Attempt]:
    attempts = read_attempts(work)
    for attempt in attempts[-1:]:  # nothing, where somebody deleted the folder meanwhile
        _complete(work, attempt, how, time.time())
        if how == "sealed":
            attempt["lost_s"] = 0.0
    return attempts


def _complete(work: Path, attempt: Attempt, how: str, ended: float) -> None:
    attempt["ended"], attempt["end"] = _stamp(ended), how
    if attempt["resumed_step"] is not None:  # else the metrics are those of the attempt before
        attempt["last_step"] = max(attempt["resumed_step"], last_recorded_step(work) or 0)


def _last_sign(work: Path, attempt: Attempt) -> float:
    times = [started_s(attempt)]
    for pattern in _SIGNS:
        for path in work.glob(pattern):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
    return max(times)


def _write(work: Path, attempts: Sequence[Attempt]) -> None:
    write_bytes(_file(work), "".join(json.dumps(line) + "\n" for line in attempts).encode())


def _file(work: Path) -> Path:
    return work / "attempts.jsonl"


def _stamp(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
