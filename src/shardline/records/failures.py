"""Failures of ranks and jobs: `errors/rank-N.json` and `failures/` in the store."""

from shardline.records.base import Record


class Failure(Record, frozen=True, kw_only=True):
    """Failure of a rank or a job.

    Attributes:
        sentence: Error message, with secrets masked.
        when: Time of the failure, UTC, ISO 8601, by the clock of its host.
        code: Exit code. From 128 on, a signal ended the rank; exactly 128 is an unknown signal.
        kind: `failed`, `stopped` (saved, can be resumed), `hung` or `diverged`.
        is_final: Whether another attempt would end the same way.
        log: File with the output, relative to the project's folder for a job; null for the log of the rank's job.
        rank: Rank; null for a job, and for a process that did not know its rank.
        host: Name of the rank's machine.
        scheduled: Job id of the scheduler.
        step: Optimiser steps done; null if unknown.
        stop: Reason of a requested stop, see `core.errors.STOPS`; null if none was requested.
        rule: Rule of the job.
        key: Subject of the job, as in the name of its log: an id comes first.
        command: Start time of the `snakemake` command; null if unknown.
    """

    sentence: str
    when: str
    code: int = 1
    kind: str = "failed"
    is_final: bool = False
    log: str | None = None
    rank: int | None = None
    host: str | None = None
    scheduled: str | None = None
    step: int | None = None
    stop: str | None = None
    rule: str | None = None
    key: str | None = None
    command: str | None = None

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended the rank."""
        return self.code >= 128
