"""The state of a workflow's jobs, from Snakemake's events and the jobs' own progress."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snakemake_logger_plugin_shardline.job_progress import ReportedProgress, mark_of, read_progress

# Largest difference between the clocks of a file server and this machine.
SKEW_S = 5.0


@dataclass(kw_only=True)
class Job:
    """A job that has been started.

    Attributes:
        message: message of its rule, or the rule's name.
        log: path of its first log, "" for none.
        begun: seconds on the board's clock at its start.
        state: `running`, `failed`, `stopped` or `done`.
        attempts: number of attempts.
        is_told: whether the start of the last attempt was shown.
        took: seconds of the last attempt.
        causes: causes of the last attempt's failure, from the job and from the executor.
        earlier: causes of the previous attempt's failure.
        progress: last report of the job.
        since: time before which this job reported nothing.
        mark: mark of the progress file when it was last read.
        left: mark of the progress file that the attempt before this one left.
    """

    rule: str
    message: str
    log: str
    begun: float
    state: str = "running"
    attempts: int = 1
    is_told: bool = True
    took: float = 0.0
    causes: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    progress: ReportedProgress | None = None
    since: float = 0.0
    mark: tuple[int, int] | None = None
    left: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """Beginning of the job's lines."""
        return (self.progress and self.progress.title) or self.message


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of the final table, as the workflow passes it.

    Attributes:
        title: title of the row, such as the name of a run.
        is_done: whether all of its results exist.
        headline: main result, such as `accuracy 0.97`.
        logs: logs of the jobs of this row alone; if one of them failed, the row has failed.
        note: sentence below the row, such as a warning.
        cause: cause of a failed job, shown if no other cause is known.
    """

    title: str
    is_done: bool
    headline: str = ""
    logs: tuple[str, ...] = ()
    note: str = ""
    cause: str = ""


def results_of(rows: Any) -> list[Result]:
    """Return the rows of a log record's `results`; other values are left out."""
    return [
        Result(
            title=str(row.get("title", "")),
            is_done=row.get("done") is True,
            headline=str(row.get("headline") or ""),
            logs=tuple(map(str, row.get("logs") or ())),
            note=str(row.get("note") or ""),
            cause=str(row.get("cause") or ""),
        )
        for row in rows or ()
        if isinstance(row, Mapping)
    ]


class Board:
    """The jobs of one Snakemake process.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begun = clock()
        self.jobs: dict[int, Job] = {}
        self.totals: dict[str, int] = {}
        self.results: list[Result] = []

    def plan(self, totals: Mapping[str, int]) -> None:
        """Record the number of jobs of each rule; `total` is not a rule."""
        self.totals = {str(rule): int(n) for rule, n in totals.items() if rule != "total"}

    def start(
        self, number: int, rule: str, message: str | None, logs: Sequence[str], created: float = 0.0
    ) -> Job:
        """Record the start of a job, or of another attempt.

        Args:
            created: time of Snakemake's record; reports from long before it belong to an earlier job.
        """
        log = str(logs[0]).removesuffix(" (send to storage)") if logs else ""
        job = Job(
            rule=rule, message=message or rule, log=log, begun=self._clock(), since=created - SKEW_S
        )
        if before := self.jobs.get(number):
            job.attempts, job.earlier = before.attempts + 1, before.causes
            job.left = mark_of(log) if log else None
        self.jobs[number] = job
        return job

    def finish(self, number: int) -> Job | None:
        """Record that a job has succeeded."""
        if job := self.jobs.get(number):
            self.look(job)
            job.state, job.took = "done", self.seconds(job)
        return job

    def fail(self, number: int, rule: str, message: str | None, logs: Sequence[str]) -> Job:
        """Record that a job has failed.

        Args:
            message: message of Snakemake or the executor.
        """
        job = self.jobs.get(number) or self.start(number, rule, None, logs)
        self.look(job)
        job.state, job.took = _end_of(job), self.seconds(job)
        causes = [cause for cause in (job.progress and job.progress.error, message) if cause]
        job.causes = causes or job.earlier
        return job

    def stop(self) -> list[Job]:
        """Read the reports of jobs whose end was not recorded; return the jobs with a cause."""
        stopped = []
        for job in self.running():
            self.look(job)
            if job.progress and job.progress.error:
                job.state, job.took = _end_of(job), self.seconds(job)
                job.causes.append(job.progress.error)
                stopped.append(job)
        return stopped

    def look(self, job: Job) -> None:
        """Read a job's progress file."""
        mark = mark_of(job.log) if job.log else None
        if mark is None or mark == job.mark or mark[1] < job.since * 1e9:
            return
        if found := read_progress(job.log):
            job.progress, job.mark = found, mark

    def is_at_work(self, job: Job) -> bool:
        """Return whether an attempt has removed or replaced the report of the one before it, if there was one."""
        return job.left is None or mark_of(job.log) != job.left

    def seconds(self, job: Job) -> float:
        """Return the seconds that a job has been running."""
        return self._clock() - job.begun

    def elapsed(self) -> float:
        """Return the seconds since the board's start."""
        return self._clock() - self.begun

    def running(self) -> list[Job]:
        """Return the running jobs, the oldest first."""
        return [job for job in self.jobs.values() if job.state == "running"]

    def count(self, state: str) -> Counter[str]:
        """Return the number of jobs in a state, by rule."""
        return Counter(job.rule for job in self.jobs.values() if job.state == state)

    def ended_early(self) -> list[Job]:
        """Return the jobs that have failed or were stopped."""
        return [job for job in self.jobs.values() if job.state in ("failed", "stopped")]


def _end_of(job: Job) -> str:
    """Return the state of a job that did not succeed."""
    return "stopped" if job.progress and job.progress.stopped else "failed"
