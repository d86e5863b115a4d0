"""`report.json`: all data of the report's page. docs/reference/files.md describes each key."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.core.intervals import Interval
from shardline.records.base import Record
from shardline.records.datasets import Reference
from shardline.records.jobs import JobRecord
from shardline.records.measured import Number
from shardline.records.reported_runs import ReportedRun
from shardline.records.sweeps import ReportedStudy


class EarlierBest(Record, frozen=True, kw_only=True):
    """Best run of a leaderboard in an earlier report.

    Attributes:
        title: Title of the leaderboard.
        metric: Headline metric.
        value: Value of the metric.
        run: Name of the run or of its repeats.
    """

    title: str
    metric: str
    value: float | None
    run: str


class EarlierReport(Record, frozen=True, kw_only=True):
    """Summary of an earlier report.

    Attributes:
        report: Id of the report.
        ended: Time at which the report was written, UTC, ISO 8601.
        num_runs: Number of runs.
        best: Best run of each leaderboard.
    """

    report: str
    ended: str | None
    num_runs: int
    best: list[EarlierBest]


class Figures(Record, frozen=True, kw_only=True):
    """Further figures in a leaderboard; for repeats, their means.

    Attributes:
        loss: Held-out loss.
        best_validation: Best validation value.
        best_step: Optimiser step of the sealed weights.
        steps: Optimiser steps done.
        duration_s: Seconds of training.
        world_size: Number of ranks.
        samples_per_s: Samples per second over all ranks.
    """

    loss: Number | None
    best_validation: Number | None
    best_step: Number | None
    steps: Number | None
    duration_s: Number | None
    world_size: Number | None
    samples_per_s: Number | None


class RankedRow(Record, frozen=True, kw_only=True):
    """A line of a leaderboard: a run, or its repeats with other seeds or folds.

    Attributes:
        title: Name of the run or of its repeats.
        place: Place in the leaderboard; 1 is the best.
        runs: Ids of the runs.
        num_measured: Number of runs with a value.
        mean: Mean of the headline metric over the runs; over folds, of the means over seeds.
        sd: Standard deviation over seeds or folds.
        interval: Ends of the 95 % interval.
        interval_method: Method of the interval.
        standing: `best`, `close` (the difference may be noise), `apart` (it is clear) or `unknown`.
        judged_by: Basis of `standing`: `seeds`, `folds`, `sampling` or empty.
        difference_from_best: Ends of the interval of the difference from the best.
        means: Further figures.
        actions: Ids of the evaluations' records.
    """

    title: str
    place: int
    runs: list[str]
    num_measured: int
    mean: float | None
    sd: float | None
    interval: Interval | None
    interval_method: str | None
    standing: str
    judged_by: str | None
    difference_from_best: Interval | None
    means: Figures
    actions: list[str]


class ReportedGroup(Record, frozen=True, kw_only=True):
    """A leaderboard of runs with the same held-out samples and the same metric.

    Attributes:
        dataset: Ids of the datasets, in one text.
        title: Title of the leaderboard.
        split: Held-out split.
        metric: Headline metric.
        mode: `max` if higher values are better, else `min`.
        reference: Published value to compare with.
        ranking: Lines of the leaderboard, the best first.
    """

    dataset: str
    title: str
    split: str
    metric: str
    mode: str
    reference: Reference | None
    ranking: list[RankedRow]


class RuleCount(Record, frozen=True, kw_only=True):
    """A rule in the picture of the workflow.

    Attributes:
        rule: Name of the rule.
        ran: Number of jobs that ran in the `snakemake` command that wrote the report.
        fresh: Number of jobs that ran in earlier commands.
        unknown: Number of jobs without a record.
        seconds: Seconds of the jobs counted in `ran`; null if there are none.
    """

    rule: str
    ran: int
    fresh: int
    unknown: int
    seconds: float | None


class WorkflowPicture(Record, frozen=True, kw_only=True):
    """Graph of the rules behind a report.

    Attributes:
        started: Start time of the `snakemake` command, UTC, ISO 8601.
        nodes: Rules with their numbers of jobs.
        edges: Pairs of rules: the second waits for the first.
    """

    started: str
    nodes: list[RuleCount]
    edges: list[tuple[str, str]]


class Report(Record, frozen=True, kw_only=True):
    """report.json: all data of the report's page.

    Attributes:
        schema: Version of this format.
        generated_from: Run table of the report.
        project: Title of the project.
        newest: End time of the newest training or evaluation, UTC, ISO 8601.
        action: Record of the job that wrote the report.
        history: Earlier reports.
        notes: Sentences about the runs, such as those trained from a changed checkout.
        workflow: Graph of the rules.
        datasets: Datasets of the runs.
        environments: Installed packages, by the `sha256` in the runs' `environment`.
        studies: Scaling studies.
        sweeps: Studies of sweeps.
        images: Images of samples, by token.
        outcomes: Runs without a result, with cause and remedy.
        groups: Leaderboards.
        runs: Runs with a result.
    """

    schema: str = ""
    generated_from: str = ""
    project: str | None = None
    newest: str | None = None
    action: JobRecord | UnsetType | None = UNSET
    history: list[EarlierReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    workflow: WorkflowPicture | None = None
    datasets: list[dict[str, Any]] = field(default_factory=list)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    studies: list[dict[str, Any]] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    sweeps: list[ReportedStudy] | UnsetType = UNSET
    outcomes: list[dict[str, Any]] | UnsetType = UNSET
    groups: list[ReportedGroup] = field(default_factory=list)
    runs: list[ReportedRun]
