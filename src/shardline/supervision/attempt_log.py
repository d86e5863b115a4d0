"""The attempts at a run's training: `attempts.jsonl` in the run's folder of the store, one line each.

The job that starts the ranks writes a line when an attempt begins and completes it at the end. If
the job was killed, the next attempt completes the line from the files that are left.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.core.canonical import digest
from shardline.core.errors import DataError, ShardlineError, Stopped, is_final
from shardline.core.files import read_json, read_json_lines, utc_stamp, write_bytes, write_json
from shardline.core.redaction import mask
from shardline.records.attempts import Attempt
from shardline.records.base import decode, encode
from shardline.supervision.failure_records import read_failures

# Files that a training writes: the newest modification time is the last activity.
_ACTIVITY = ("metrics.jsonl", "checkpoints/*", "output/*")
_SEAL, _HOLDER = "sha256", "holder.json"
_TAIL_BYTES = 65536
_REASON_CHARACTERS = 500


def read_attempts(work: Path) -> list[Attempt]:
    """Return the attempts, the oldest first; lines after a torn line are dropped.

    Raises:
        DataError: a line was changed, or one is missing.
    """
    try:
        lines = read_json_lines(_file(work))
    except FileNotFoundError:
        return []
    remedy = "move the file away to count attempts from 1 again"
    is_whole = bool(lines) and all(isinstance(line, dict) for line in lines)
    if not is_whole or {line.pop(_SEAL, None) for line in lines} != {digest(lines)}:
        raise DataError(
            f"{_file(work)}: the recorded attempts were changed (their sha256 differs); {remedy}"
        )
    return [decode(line, Attempt, where=_file(work), remedy=remedy) for line in lines]


def begin_attempt(
    work: Path, *, job: str | None = None, queue_s: float | None = None,
    started: float | None = None, retry: int = 0,
) -> int:  # fmt: skip
    """Write the line of a new attempt, complete the line of a killed one, and return the new number.

    Args:
        work: the run's folder in the store.
        job: ID of the scheduler's job.
        queue_s: seconds that the job waited for its machines.
        started: seconds since the epoch; now if None.
        retry: number of the retry; 0 if a user's command began the attempt.

    Returns:
        Number of the attempt, from 1.
        1 for the first attempt.
    """
    attempts = _ended_attempts(work)
    attempts.append(
        Attempt(
            host=socket.gethostname(),
            job=job,
            queue_s=queue_s,
            retry=retry,
            started=utc_stamp(started),
        )
    )
    _write(work, attempts)
    return len(attempts)


def take_attempts_over(shorter: Path, run: str, work: Path) -> None:
    """Put the attempts of a shorter run, which this run continues, before the run's own attempts.

    Args:
        shorter: the shorter run's folder in the store.
        run: ID of the shorter run.
        work: the run's folder in the store.
    """
    known = [structs.replace(one, run=one.run or run) for one in _ended_attempts(shorter)]
    _write(work, [*known, *own_attempts(work)])


def _ended_attempts(work: Path) -> list[Attempt]:
    """Return the attempts; the last one is completed if its job was killed."""
    attempts = read_attempts(work)
    if attempts and attempts[-1].end is None:
        killed = _completed(work, attempts[-1], "killed", _last_activity(work, attempts[-1]))
        attempts[-1] = structs.replace(killed, **_left(work, killed))
    return attempts


def own_attempts(work: Path) -> list[Attempt]:
    """Return the attempts without those of a shorter run that this run continues."""
    return [one for one in read_attempts(work) if not one.run]


@contextmanager
def attempted(work: Path, **known: Any) -> Iterator[int]:
    """Record an attempt while a job trains; yields its number. See `begin_attempt`."""
    number = begin_attempt(work, **known)
    try:
        yield number
    except BaseException as error:
        with suppress(DataError):  # a full disk must not hide the error of the training
            _write(work, _ended(work, **_describe_error(error)))
        raise
    with suppress(DataError):
        _write(work, sealed_log(work))


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return the fields that an error adds to its attempt's line."""
    if isinstance(error, KeyboardInterrupt):
        reason = "the job had to exit at once, before its ranks had saved"
        return {"end": "killed", "reason": reason, "exit_code": 130}
    if not isinstance(error, ShardlineError):
        return {"end": "failed", "reason": f"{type(error).__name__}: {error}", "exit_code": 1}
    stop = error.reason if isinstance(error, Stopped) else None
    known = {"end": error.kind, "reason": str(error), "stop": stop, "exit_code": error.exit_code}
    known["is_final"] = is_final(error)
    # the last recorded metrics may be older than the saved step
    return {**known, "step": error.step} if isinstance(error, Stopped) else known


def _left(work: Path, attempt: Attempt) -> dict[str, str | int | None]:
    """Return the fields for an attempt whose job was killed; a rank may have recorded the failure."""
    if failures := read_failures(work):
        first = failures[0]
        end = {"end": first.kind, "stop": first.stop, "exit_code": first.code}
        reason = mask(first.sentence)[:_REASON_CHARACTERS]
        return {"reason": reason, "is_final": first.is_final, **end}
    after = f" after step {attempt.last_step}" if attempt.last_step else ""
    lost = f"the job was killed, {attempt.host} failed, or it was cut off from the store"
    return {"reason": f"exited without a report{after}: {lost}"}


def record_resumed_step(
    work: Path, number: int, step: int, kept_s: Mapping[int, float], *, world: int
) -> None:
    """Record the step that an attempt resumes from, and the lost work of earlier attempts.

    Args:
        number: number of the attempt.
        step: optimiser step of the state that the attempt resumes from.
        kept_s: seconds of each earlier attempt, by number, whose work is in that state.
        world: number of ranks.
    """
    attempts = read_attempts(work)
    if number > 1:  # killed after its last metrics, but it saved this state
        attempts[number - 2] = _reached(attempts[number - 2], step)
    for place, attempt in enumerate(attempts[: number - 1]):
        lost_s = max(0.0, attempt.duration_s - kept_s.get(place + 1, 0.0))
        attempts[place] = structs.replace(
            attempt, lost_s=round(lost_s, 3), steps_lost=_steps_lost(attempt, step)
        )
    mine = attempts[number - 1]
    if mine.resumed_step is not None:  # the training diverged, and rolls back again
        step = min(step, mine.resumed_step)
    attempts[number - 1] = structs.replace(mine, resumed_step=step, world=world)
    _write(work, attempts)


def _steps_lost(attempt: Attempt, step: int) -> int | None:
    """Return how many steps of an attempt are repeated by an attempt that resumes from `step`."""
    if attempt.resumed_step is None or attempt.last_step is None:
        return None
    again = attempt.last_step - max(step, attempt.resumed_step)
    return max(attempt.steps_lost or 0, again)


def sealed_log(work: Path) -> list[Attempt]:
    """Return the attempts with the last one completed as sealed."""
    return _ended(work, end="sealed", reason="trained to its end", exit_code=0)


def sealed_again(steps: int, run: str) -> str:
    """Return the message of a training that resumed from its last step and trained nothing.

    Args:
        steps: steps of the whole training.
        run: ID of the run.
    """
    return (
        f"nothing was trained: the result is sealed from the finished training checkpoint of step {steps:,}; "
        f"`shardline rerun {run}` trains the run again beside it, `shardline rm {run} --delete` removes both"
    )


def last_recorded_step(work: Path) -> int | None:
    """Return the last optimiser step in the metrics of a training or a script; None without metrics."""
    for path in (work / "metrics.jsonl", work / "output" / "metrics.jsonl"):
        # the last line may be longer than the tail: an image or a table
        lines = (line for read in (tail_of, _whole) for line in reversed(read(path).splitlines()))
        for line in lines:
            try:
                return int(json.loads(line)["step"])
            except (ValueError, TypeError, KeyError):
                continue  # the line that is being written right now, or a part of one
    return None


@contextmanager
def only_one(work: Path, run_id: str) -> Iterator[bool]:
    """Lock a run's folder; yields whether this job had to wait for another job's lock.

    A job outlives a Snakemake that was killed, and two Snakemakes may share a store. The kernel
    releases the lock when the locking process exits, however it exits.
    """
    from filelock import FileLock, Timeout

    lock, has_waited = FileLock(work / "lock"), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"{run_id} is being trained by {_holder(work)}; waiting until it exits"
        logging.warning("%s", message)
        with suppress(OSError):  # standard error may be closed
            print(message, file=sys.stderr, flush=True)
        lock.acquire(poll_interval=1)
        has_waited = True
    try:
        job = os.environ.get("SLURM_JOB_ID") or os.environ.get("AZUREML_RUN_ID")
        who = {"host": socket.gethostname(), "job": job, "pid": os.getpid(), "since": utc_stamp()}
        with suppress(DataError):  # on a full disk the lock alone must do
            write_json(work / _HOLDER, who)
        yield has_waited
    finally:
        lock.release()


def _holder(work: Path) -> str:
    """Return a description of the job that trains a run, as far as known."""
    try:
        who = read_json(work / _HOLDER, remedy="")
    except DataError:
        return "another job"
    job = f", job {who['job']}" if who["job"] else ""
    step = last_recorded_step(work)
    place = f"process {who['pid']} on {who['host']}{job}, since {who['since']}"
    return f"another job ({place}{f', now at step {step}' if step else ''})"


def _whole(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def tail_of(path: Path) -> bytes:
    """Return the last bytes of a file; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def _ended(
    work: Path, *, end: str, reason: str, step: int | None = None, **fields: Any
) -> list[Attempt]:
    attempts = read_attempts(work)
    if not attempts:  # the folder was deleted during the attempt
        return []
    last = _reached(_completed(work, attempts[-1], end, time.time()), step)
    nothing_lost = {"steps_lost": 0, "lost_s": 0.0} if end == "sealed" else {}
    reason = mask(reason)[:_REASON_CHARACTERS]
    return [*attempts[:-1], structs.replace(last, reason=reason, **fields, **nothing_lost)]


def _completed(work: Path, attempt: Attempt, end: str, ended: float) -> Attempt:
    attempt = structs.replace(attempt, ended=utc_stamp(ended), end=end)
    if attempt.resumed_step is None:  # the metrics belong to the previous attempt
        return attempt
    last = max(attempt.resumed_step, last_recorded_step(work) or 0)
    return structs.replace(attempt, last_step=last, steps_done=last - attempt.resumed_step)


def _reached(attempt: Attempt, step: int | None) -> Attempt:
    """Return an attempt updated with a step whose state it has saved."""
    first, last = attempt.resumed_step, attempt.last_step
    if step is None or first is None or last is None or last >= step:
        return attempt
    return structs.replace(attempt, last_step=step, steps_done=step - first)


def _last_activity(work: Path, attempt: Attempt) -> float:
    times = [attempt.started_s]
    for pattern in _ACTIVITY:
        for path in work.glob(pattern):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
    return max(times)


def _write(work: Path, attempts: Sequence[Attempt]) -> None:
    """Write all lines; each contains the digest of all lines, so that a missing line is detected."""
    if not attempts:
        return
    lines = [encode(attempt) for attempt in attempts]
    seal = {_SEAL: digest(lines)}
    write_bytes(
        _file(work), "".join(json.dumps({**line, **seal}) + "\n" for line in lines).encode()
    )


def _file(work: Path) -> Path:
    return work / "attempts.jsonl"
