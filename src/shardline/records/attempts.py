"""Attempts at a training: `attempts.jsonl` in the store, and `attempt_log` in `provenance.json`."""

import re
from datetime import datetime

from msgspec import UNSET, UnsetType

from shardline.records.base import Record

# Advice that a later attempt has followed; a hang's advice about its limit stays.
_RESUME = re.compile(
    r"; (run the same command again to resume|the same command resumes)( from there)?(?=$|; see \S+$)"
    r"|run the same command again to resume, and "
)


class Attempt(Record, frozen=True, kw_only=True):
    """One job's attempt at a training. Null means unknown, or not known yet.

    Attributes:
        host: Name of the job's machine.
        job: Job id of the scheduler.
        queue_s: Seconds that the job waited in the queue.
        retry: Number of the retry by Snakemake; 0 for an attempt that a command started.
        started: Start time, UTC, ISO 8601.
        ended: End time, UTC, ISO 8601.
        end: `sealed`; `stopped` (on request, after saving); `failed`, `hung` or `diverged` (by a rank);
            `killed` (the job ended before its ranks could save, or without a record).
        reason: Reason of the end, in one sentence.
        stop: Reason of a requested stop, see `core.errors.STOPS`.
        exit_code: Exit code of the job.
        is_final: Whether another attempt would end the same way.
        resumed_step: Optimiser steps in the training checkpoint that the attempt resumed from.
        last_step: Optimiser steps at the end of the attempt.
        steps_done: Optimiser steps from `resumed_step` to `last_step`.
        steps_lost: Number of these steps that a later attempt repeated.
        lost_s: Seconds of work that a later attempt repeated.
        world: Number of ranks.
        run: Id of the shorter run that the attempt trained, if this run has continued it.
        threads: CPU threads of each rank.
    """

    host: str
    job: str | None = None
    queue_s: float | None = None
    retry: int = 0
    started: str
    ended: str | None = None
    end: str | None = None
    reason: str | None = None
    stop: str | None = None
    exit_code: int | None = None
    is_final: bool = False
    resumed_step: int | None = None
    last_step: int | None = None
    steps_done: int | None = None
    steps_lost: int | None = None
    lost_s: float | None = None
    world: int | None = None
    run: str | UnsetType = UNSET
    threads: int | None = None

    @property
    def cause(self) -> str | None:
        """Reason of the end without the advice to resume, for an attempt that a later one followed."""
        return self.reason and _RESUME.sub("", self.reason)

    @property
    def started_s(self) -> float:
        """Start time, in seconds since the epoch."""
        return _seconds(self.started)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end of an attempt that has ended."""
        assert self.ended is not None
        return _seconds(self.ended) - self.started_s


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
