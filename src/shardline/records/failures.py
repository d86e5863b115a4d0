"""How ranks and jobs ended with an error: `errors/rank-N.json` of a run's store folder, and the store's `failures/`."""

from shardline.records.base import Record


class Failure(Record, frozen=True, kw_only=True):
    """The end of a rank or of a job.

    Attributes:
        sentence: the error; no secret is in it.
        when: UTC, ISO 8601, by the clock of its host.
        code: exit code; 128 and more: a signal ended a rank; 128: an unknown signal.
        kind: `failed`, `stopped` (saved, can be resumed), `hung` or `diverged`.
        is_final: whether another attempt would end alike.
        log: the file with the output, of a job from the project's folder; None: that of the job.
        rank: None for a job, and for a process that could not resolve it.
        host: name of the rank's machine.
        scheduled: the scheduler's number of the rank's job.
        step: optimiser steps done, where known.
        stop: why a stop was requested, see `core.errors.STOPS`; None if it was not.
        rule: of the job.
        key: what the job was about, as in its log's name: an identity comes first.
        command: when the pipeline run of the job began; None where that is not known.
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
