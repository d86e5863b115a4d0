"""`report.json`: everything that the report's page shows. docs/reference/files.md describes each key."""

import math
from bisect import bisect_right
from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.core.intervals import Interval, wilson_interval
from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.datasets import Reference
from shardline.records.evaluations import Calibration, Mistake, Residuals, ShownSamples
from shardline.records.jobs import Commit, JobRecord
from shardline.records.measured import Goodput, Intervention, Number, Resources, Throughput
from shardline.records.runs import Certificate, PackedSamples, Places

GroupKey = tuple[str, str, str, str, str]


class Curve(Record, frozen=True, kw_only=True):
    """One metric of one run.

    Attributes:
        steps: optimizer steps, rising.
        values: metric at each step; finite.
        num_non_finite: points dropped because they were null, NaN or infinite.
        epochs: number of the epoch that each step is of, from 0; empty where not recorded.
        wall_s: seconds of training at each step; empty where not recorded.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    num_non_finite: int = 0
    epochs: tuple[int, ...] = ()
    wall_s: tuple[float, ...] = ()

    def at(self, step: int) -> float:
        """Return the value at a step, or the last one before it; the first where there is none."""
        return self.values[max(0, bisect_right(self.steps, step) - 1)]


class EpochEnds(Record, frozen=True, kw_only=True):
    """The passes over the data that are complete at some steps, from step 0 on."""

    steps: tuple[int, ...] = (0,)
    passes: tuple[float, ...] = (0.0,)


class ReportedDataset(Record, frozen=True, kw_only=True):
    """A dataset as a run has read it.

    Attributes:
        name: in the config.
        weight: in a mix, as text.
        manifest_sha256: of the manifest that the training read.
    """

    id: str
    name: str
    weight: str = "1"
    manifest_sha256: str | None = None


class ReportedHeadline(Record, frozen=True, kw_only=True):
    """The held-out metric that a run is ranked by.

    Attributes:
        is_logged_by_model: whether the model's own step logs it, so that it may count pixels or tokens.
        action: id of the evaluation.
    """

    metric: str
    mode: str = "max"
    split: str = "test"
    value: float | None = None
    interval: Interval | None = None
    interval_method: str | None = None
    num_samples: int | None = None
    measured_by: str = "evaluate"
    is_logged_by_model: bool = False
    action: str


class ReportedAttempt(Attempt, frozen=True, kw_only=True):
    """An attempt with its seconds from start to end."""

    duration_s: float


class ReportedTraining(Record, frozen=True, kw_only=True):
    """How a run was trained; `host` is of rank 0."""

    steps: int | None = None
    epochs: int | None = None
    duration_s: float | None = None
    attempts: int | None = None
    attempt_log: list[ReportedAttempt] | None = None
    started: str | None = None
    ended: str | None = None
    world_size: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    devices: list[str] | None = None
    device_names: list[str] = field(default_factory=list)
    stopped_early: bool = False
    interventions: list[Intervention] = field(default_factory=list)
    seed: int | None = None
    host: str | None = None
    certificate: Certificate | None = None
    action: str = ""


class ReportedAcceptance(Record, frozen=True, kw_only=True):
    """From what, by whom, when and why an earlier result was accepted, and what differs."""

    from_: str = field(name="from")
    by: str
    at: str
    reason: str
    differs: list[str]
    action: str


class ReportedWarning(Record, frozen=True, kw_only=True):
    """Why a sealed model is suspect, see `records.model_warnings`; `action` made what shows it."""

    kind: str
    sentence: str
    action: str


class ReportedCalibration(Record, frozen=True, kw_only=True):
    """The expected calibration error."""

    ece: Number
    action: str


class ReportedValidation(Record, frozen=True, kw_only=True):
    """The validation of the sealed weights: of the headline metric, else of the loss."""

    metric: str
    value: float
    step: int
    action: str


class ReportedThroughput(Throughput, frozen=True, kw_only=True):
    """How fast steps were, with the id of the training's action."""

    action: str


class ReportedGoodput(Goodput, frozen=True, kw_only=True):
    """Where the time went, with the id of the training's action."""

    action: str


class ReportedResources(Resources, frozen=True, kw_only=True):
    """What the ranks used, with the id of the training's action."""

    action: str


class ReportedPacks(PackedSamples, frozen=True, kw_only=True):
    """Samples that are blocks or packs, with the id of the training's action."""

    action: str


class ReportedEnvironment(Record, frozen=True, kw_only=True):
    """What a run was trained in, beside what the lock pins.

    Attributes:
        sha256: digest of the installed packages.
        differences: from the lock, a sentence for each; None where no packages were recorded.
    """

    python: str | None = None
    platform: str | None = None
    num_packages: int | None = None
    sha256: str | None = None
    image: str | None = None
    differences: list[str] | None = None


class Cell(Record, frozen=True, kw_only=True):
    """A cell of a confusion matrix; `shade` is the share of the row in eighths."""

    count: int
    shade: int
    right: bool


class ConfusionRow(Record, frozen=True, kw_only=True):
    """A row of a confusion matrix: a true class."""

    name: str
    cells: list[Cell]


class ClassAccuracy(Record, frozen=True, kw_only=True):
    """A class with its samples, and those of them that were found."""

    name: Any
    samples: int
    right: int


class ReportedConfusion(Record, frozen=True, kw_only=True):
    """A confusion as the page shows it: of few classes the rows, of all what is mistaken most."""

    num_classes: int
    num_mistakes: int
    max_undercount: int
    classes: list[str]
    rows: list[ConfusionRow]
    mistakes: list[Mistake]
    hardest: list[ClassAccuracy]


class ReportedRun(Record, frozen=True, kw_only=True):
    """A run as the page shows it.

    Attributes:
        id: tells it from all other runs of the report: the id of its training, with the evaluation's where the
            report has two evaluations of it.
        training_id: id of its training.
        dataset: ids of its datasets, in one text.
        varied_values: the settings that vary within a grid of the table, by dotted key.
        all_but_seed: digest of everything that its result depends on but the seed; equal of repeats.
        versions: result versions, from its identity.
        definitions: digests of the user's code, from its identity.
        held_out_task: what was evaluated, such as `regression`.
        known_value: a value of others to hold its own against: `metric`, `value` and `meaning`.
        curves: by metric; long ones keep the lowest and highest value of each stretch of steps.
        confusion: as the page shows it.
        reliability: bins of the calibration.
        samples: with tokens of `images` in the place of images.
        software: versions of what matters most.
    """

    id: str
    training_id: str = ""
    name: str = ""
    names: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    identity: str | None = None
    dataset: str = ""
    trained_on: list[ReportedDataset] = field(default_factory=list)
    dataset_names: list[str] = field(default_factory=list)
    model: str | None = None
    accepted: ReportedAcceptance | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    varied_values: dict[str, Any] = field(default_factory=dict)
    in_table: bool = True
    all_but_seed: str = ""
    versions: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, Any] = field(default_factory=dict)
    warnings: list[ReportedWarning] = field(default_factory=list)
    headline: ReportedHeadline
    metrics: dict[str, float | str | None] = field(default_factory=dict)
    held_out_task: str = ""
    known_value: Reference | None = None
    calibration: ReportedCalibration | None = None
    reliability: Calibration | None = None
    residuals: Residuals | None = None
    confusion: ReportedConfusion | None = None
    samples: ShownSamples | None = None
    best_validation: ReportedValidation | None = None
    training: ReportedTraining = ReportedTraining()
    throughput: ReportedThroughput | None = None
    goodput: ReportedGoodput | None = None
    resources: ReportedResources | None = None
    packs: ReportedPacks | UnsetType = UNSET
    curves: dict[str, Curve] = field(default_factory=dict)
    epoch_ends: EpochEnds = EpochEnds()
    code: Commit | None = None
    environment: ReportedEnvironment = ReportedEnvironment()
    software: dict[str, str] = field(default_factory=dict)
    tracking: Places = field(default_factory=dict)
    manifest_sha256: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(name="actions", default_factory=dict)

    @property
    def actions(self) -> dict[str, str]:
        """Rule to the id of the action that made this run's files by it."""
        return {rule: action["id"] for rule, action in self.made.items()}

    @property
    def dataset_name(self) -> str:
        """The dataset's names in the config."""
        return ", ".join(self.dataset_names)

    @property
    def group_key(self) -> GroupKey:
        """Dataset, its id, split, metric and mode: runs of equal ones are ranked against each other."""
        return self.dataset_name, self.dataset, self.split, self.metric, self.mode

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return self.headline.metric

    @property
    def mode(self) -> str:
        """ "max" if a higher headline metric is better, else "min"."""
        return self.headline.mode

    @property
    def split(self) -> str:
        """The held-out split that the run was evaluated on."""
        return self.headline.split

    @property
    def num_samples(self) -> int | None:
        """Held-out samples behind the headline metric, if the evaluation counts them."""
        return self.headline.num_samples

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the headline metric by the choice of samples; None where it is not known."""
        return self.headline.interval

    @property
    def value(self) -> float:
        """The held-out headline metric; NaN where none could be computed."""
        return math.nan if self.headline.value is None else self.headline.value

    @property
    def is_measured(self) -> bool:
        """Whether there is a headline metric to speak of: a training script need not give one."""
        return self.headline.value is not None or not self.is_measured_by_script

    @property
    def is_measured_by_script(self) -> bool:
        """Whether the held-out figures are the training script's own."""
        return self.headline.measured_by == "script"

    def interval_of(self, value: float) -> Interval | None:
        """Return the interval of another value of its metric, such as a mean over seeds, as of one so measured."""
        if self.headline.interval_method not in (None, "wilson"):
            return self.interval if value == self.value else None
        return interval_of_accuracy(self.headline, value)

    @property
    def validation_metric(self) -> str:
        """What the headline metric is called where it is measured on the validation split."""
        return f"val_{self.metric.removeprefix('test_').removeprefix('val_')}"

    @property
    def held_out(self) -> dict[str, float | None]:
        """Every held-out metric."""
        return {k: v for k, v in self.metrics.items() if not isinstance(v, str)}

    def setting(self, key: str) -> Any:
        """Return a setting by its dotted key; None where the run has none of that name."""
        return self.varied_values.get(key, self.settings.get(key))


def interval_of_accuracy(headline: ReportedHeadline, value: float) -> Interval | None:
    """Return the interval of an accuracy by the number of samples; None of another metric."""
    # what a model logs as accuracy may count pixels or tokens, and not the samples
    if headline.metric != "accuracy" or headline.is_logged_by_model:
        return None
    if not (headline.num_samples and 0 <= value <= 1):
        return None
    return wilson_interval(value, headline.num_samples)


class EarlierBest(Record, frozen=True, kw_only=True):
    """The best of a group in an earlier report: its value, and the run or repeats by name."""

    title: str
    metric: str
    value: float | None
    run: str


class EarlierReport(Record, frozen=True, kw_only=True):
    """What an earlier report held: `report` is its id, `ended` when it was written."""

    report: str
    ended: str | None
    num_runs: int
    best: list[EarlierBest]


class Figures(Record, frozen=True, kw_only=True):
    """Figures of a run, or their means over repeats, that stand in the leaderboard beside its score."""

    loss: Number | None
    best_validation: Number | None
    best_step: Number | None
    steps: Number | None
    duration_s: Number | None
    world_size: Number | None
    samples_per_s: Number | None


class RankedRow(Record, frozen=True, kw_only=True):
    """A line of a leaderboard: a run, or its repeats with other seeds.

    Attributes:
        place: 1 for the best.
        runs: by id.
        num_measured: runs with a value.
        sd: of the values over seeds.
        standing: see `report.significance.Verdict`, as for `judged_by` and `difference_from_best`.
        actions: ids of the evaluations.
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
    """A leaderboard: runs that were evaluated on the same samples by the same metric."""

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
        ran: jobs that the pipeline run made which wrote the report.
        fresh: jobs that an earlier one had made.
        unknown: jobs without a record.
        seconds: of those that ran; None where none did.
    """

    rule: str
    ran: int
    fresh: int
    unknown: int
    seconds: float | None


class WorkflowPicture(Record, frozen=True, kw_only=True):
    """The rules behind a report, and which waits for which.

    Attributes:
        started: when the pipeline run began (UTC, ISO 8601).
    """

    started: str
    nodes: list[RuleCount]
    edges: list[tuple[str, str]]


class Report(Record, frozen=True, kw_only=True):
    """report.json.

    Attributes:
        action: the record of the job that wrote it.
        images: of samples, by the tokens that stand for them.
        environments: installed packages, by the `sha256` of runs' `environment`.
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
    outcomes: list[dict[str, Any]] | UnsetType = UNSET
    groups: list[ReportedGroup] = field(default_factory=list)
    runs: list[ReportedRun]
