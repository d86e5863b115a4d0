"""A line of `attempts.jsonl` in a run's folder of the store, and of `attempt_log` in its `provenance.json`."""

from datetime import datetime

from shardline.records.base import Record


class Attempt(Record, frozen=True, kw_only=True):
    """A job's attempt at a training. None stands for what is not known, or not known yet.

    Attributes:
        host: the machine of the job.
        job: the scheduler's number of the job.
        queue_s: seconds that the job waited for its machines.
        retry: 0: a user's command began it; n: the n-th retry by Snakemake.
        started: UTC, as is `ended`.
        end: `sealed`; `stopped`: on request, and saved; `failed`, `hung`, `diverged`: by a rank; `killed`: the
            job ended before its ranks could save, or without a record.
        reason: one sentence.
        stop: why a stop was requested, see `core.errors.STOPS`.
        exit_code: of the job.
        is_final: whether another attempt would end alike.
        resumed_step: optimiser steps of the training checkpoint that it began with.
        last_step: optimiser steps at its end.
        steps_done: optimiser steps between the two.
        steps_lost: of these, how many a later attempt did again.
        lost_s: seconds whose work a later attempt did again.
        world: number of ranks.
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

    @property
    def started_s(self) -> float:
        """Its start, in seconds since the epoch."""
        return _seconds(self.started)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end, of one that has ended."""
        assert self.ended is not None
        return _seconds(self.ended) - self.started_s


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
