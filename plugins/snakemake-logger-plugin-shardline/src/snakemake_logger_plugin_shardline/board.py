"""What is known of a workflow's jobs, from Snakemake's events and the jobs' own progress."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snakemake_logger_plugin_shardline.job_progress import ReportedProgress, mark_of, read_progress

# Clocks of a file server and of this machine may differ by so many seconds.
SKEW_S = 5.0


@dataclass(kw_only=True)
class Job:
    """A job that has been started.

    Attributes:
        message: of its rule, or the rule's name.
        log: path of its first log, "" for none.
        begun: seconds on the board's clock at its start.
        state: `running`, `failed`, `stopped` or `done`.
        attempts: how often it was started.
        is_told: whether the last attempt's start was shown.
        took: seconds of the last attempt.
        causes: why its last attempt failed: what the job reports, and what the executor knows.
        earlier: the same of the attempt before.
        progress: what it reported last.
        since: time before which nothing was reported by this job.
        mark: of the file when it was read last.
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

    @property
    def title(self) -> str:
        """What its lines begin with."""
        return (self.progress and self.progress.title) or self.message


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of the table at the end, as the workflow itself gives it.

    Attributes:
        title: what the row is about, such as the name of a run.
        is_done: whether it has all of its results.
        headline: what came out, such as `accuracy 0.97`.
        logs: of the jobs that it needs for itself alone; the row has failed where one of them has.
        note: a sentence below the row, such as a warning.
        cause: why a job of it failed, shown where nothing else is known.
    """

    title: str
    is_done: bool
    headline: str = ""
    logs: tuple[str, ...] = ()
    note: str = ""
    cause: str = ""


def results_of(rows: Any) -> list[Result]:
    """Return the rows of a log record's `results`; what is no row is left out."""
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
    """The jobs of one start of Snakemake.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begun = clock()
        self.jobs: dict[int, Job] = {}
        self.totals: dict[str, int] = {}
        self.results: list[Result] = []

    def plan(self, totals: Mapping[str, Any]) -> None:
        """Note how many jobs there will be of each rule; `total` is none."""
        self.totals = {str(rule): int(n) for rule, n in totals.items() if rule != "total"}

    def start(
        self, number: int, rule: str, message: str | None, logs: Sequence[str], created: float = 0.0
    ) -> Job:
        """Note that a job was started, or started again.

        Args:
            created: time of Snakemake's record; what was reported long before it is of an earlier job.
        """
        log = str(logs[0]).removesuffix(" (send to storage)") if logs else ""
        job = Job(
            rule=rule, message=message or rule, log=log, begun=self._clock(), since=created - SKEW_S
        )
        if before := self.jobs.get(number):
            job.attempts, job.earlier = before.attempts + 1, before.causes
        self.jobs[number] = job
        return job

    def finish(self, number: int) -> Job | None:
        """Note that a job has ended well."""
        if job := self.jobs.get(number):
            self.look(job)
            job.state, job.took = "done", self.seconds(job)
        return job

    def fail(self, number: int, rule: str, message: str | None, logs: Sequence[str]) -> Job:
        """Note that a job has failed.

        Args:
            message: what Snakemake or the executor knows of it.
        """
        job = self.jobs.get(number) or self.start(number, rule, None, logs)
        self.look(job)
        job.state, job.took = _end_of(job), self.seconds(job)
        causes = [cause for cause in (job.progress and job.progress.error, message) if cause]
        job.causes = causes or job.earlier
        return job

    def stop(self) -> list[Job]:
        """Note what is known of jobs that nobody has reported the end of; returns those with a cause."""
        stopped = []
        for job in self.running():
            self.look(job)
            if job.progress and job.progress.error:
                job.state, job.took = _end_of(job), self.seconds(job)
                job.causes.append(job.progress.error)
                stopped.append(job)
        return stopped

    def look(self, job: Job) -> None:
        """Read what a job reports of itself."""
        mark = mark_of(job.log) if job.log else None
        if mark is None or mark == job.mark or mark[1] < job.since * 1e9:
            return
        if found := read_progress(job.log):
            job.progress, job.mark = found, mark

    def seconds(self, job: Job) -> float:
        """Return how long a job has been running."""
        return self._clock() - job.begun

    def elapsed(self) -> float:
        """Return how long the board has been there."""
        return self._clock() - self.begun

    def running(self) -> list[Job]:
        """Return the jobs that run, the oldest first."""
        return [job for job in self.jobs.values() if job.state == "running"]

    def count(self, state: str) -> Counter[str]:
        """Return how many jobs of each rule are in a state."""
        return Counter(job.rule for job in self.jobs.values() if job.state == state)

    def ended_early(self) -> list[Job]:
        """Return the jobs that have failed or were stopped."""
        return [job for job in self.jobs.values() if job.state in ("failed", "stopped")]


def _end_of(job: Job) -> str:
    """Return what became of a job that did not end well."""
    return "stopped" if job.progress and job.progress.stopped else "failed"
