"""`report.json`: all data of the report's page. docs/reference/files.md describes each key."""

import math
from bisect import bisect_right
from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.core.intervals import Interval, wilson_interval
from shardline.core.metric_names import find_metric, measure_of
from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.datasets import Reference
from shardline.records.evaluations import Calibration, Mistake, Residuals, ShownSamples
from shardline.records.jobs import Commit, JobRecord
from shardline.records.measured import Goodput, Intervention, Number, Resources, Throughput
from shardline.records.runs import (
    BaseRef,
    Certificate,
    CombinedRuns,
    Continued,
    LoadedWeights,
    PackedSamples,
    Places,
)
from shardline.records.sweeps import ReportedStudy

GroupKey = tuple[str, str, str, str, str]


class Curve(Record, frozen=True, kw_only=True):
    """One metric of one run.

    Attributes:
        steps: Optimiser steps, rising.
        values: Finite values of the metric, one per step.
        num_non_finite: Number of points left out because they were null, NaN or infinite.
        epochs: Epoch of each step, from 0; empty if not recorded.
        wall_s: Seconds of training at each step; empty if not recorded.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    num_non_finite: int = 0
    epochs: tuple[int, ...] = ()
    wall_s: tuple[float, ...] = ()

    def at(self, step: int) -> float:
        """Return the last value up to a step; the first value if the step is before it."""
        return self.values[max(0, bisect_right(self.steps, step) - 1)]


class EpochEnds(Record, frozen=True, kw_only=True):
    """Passes over the data, by step.

    Attributes:
        steps: Optimiser steps, from 0.
        passes: Number of passes done at each step.
    """

    steps: tuple[int, ...] = (0,)
    passes: tuple[float, ...] = (0.0,)


class ReportedDataset(Record, frozen=True, kw_only=True):
    """A dataset of a run.

    Attributes:
        id: Id of the dataset.
        name: Name in the config.
        weight: Weight in a mix, as text.
        manifest_sha256: SHA-256 of the manifest that the training read.
    """

    id: str
    name: str
    weight: str = "1"
    manifest_sha256: str | None = None


class ReportedBase(BaseRef, frozen=True, kw_only=True):
    """What the training of a run began from.

    Attributes:
        name: Name of the run or sweep in the config, or number of the trial; empty for a file, a folder, or a run
            outside of the config.
    """

    name: str = ""


class ReportedHeadline(Record, frozen=True, kw_only=True):
    """The held-out metric that a run is ranked by.

    Attributes:
        metric: Name of the metric.
        mode: `max` if higher values are better, else `min`.
        split: Held-out split.
        value: Value; null if none could be computed.
        interval: Ends of the 95 % interval.
        interval_method: Method of the interval, such as `wilson`.
        num_samples: Number of evaluated samples.
        measured_by: `evaluate`, `script` or `model`: what computed the metric.
        is_logged_by_model: Whether the model logs the metric, which may then count pixels or tokens.
        action: Id of the evaluation's record.
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
    """An attempt with its duration.

    Attributes:
        duration_s: Seconds from start to end.
    """

    duration_s: float


class ReportedTraining(Record, frozen=True, kw_only=True):
    """Training of a run.

    Attributes:
        steps: Optimiser steps done.
        epochs: Epochs done.
        duration_s: Seconds of the last attempt.
        attempts: Number of attempts.
        attempt_log: All attempts, the oldest first.
        started: Start time, UTC, ISO 8601.
        ended: End time, UTC, ISO 8601.
        world_size: Number of ranks.
        nodes: Number of machines.
        launcher: Launcher of the ranks.
        devices: Device of each rank.
        device_names: Models of the devices.
        stopped_early: Whether early stopping ended the training.
        interventions: Interventions after a divergence.
        seed: Seed of all randomness.
        host: Machine of rank 0.
        certificate: Resume certificate that is valid for the training.
        init: Weights with which the training began, if they are of another run or of a file.
        continued: The shorter run that the training continued, if it did.
        action: Id of the training's record.
    """

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
    init: LoadedWeights | UnsetType = UNSET
    combined: CombinedRuns | UnsetType = UNSET
    continued: Continued | UnsetType = UNSET
    action: str = ""


class ReportedAcceptance(Record, frozen=True, kw_only=True):
    """Acceptance of an earlier result.

    Attributes:
        from_: Id of the earlier result.
        by: Login name of the user.
        at: Time of the acceptance, UTC, ISO 8601.
        reason: Reason that the user gave.
        differs: Differences between the identities.
        action: Id of the acceptance's record.
    """

    from_: str = field(name="from")
    by: str
    at: str
    reason: str
    differs: list[str]
    action: str


class ReportedWarning(Record, frozen=True, kw_only=True):
    """A warning on a sealed model, see `records.model_warnings`.

    Attributes:
        kind: `loss`, `weights` or `constant`.
        sentence: What was found, what was expected and what to do.
        action: Id of the record behind the warning.
    """

    kind: str
    sentence: str
    action: str


class ReportedCalibration(Record, frozen=True, kw_only=True):
    """The expected calibration error.

    Attributes:
        ece: Expected calibration error, 0 to 1.
        action: Id of the evaluation's record.
    """

    ece: Number
    action: str


class ReportedValidation(Record, frozen=True, kw_only=True):
    """Validation of the sealed weights.

    Attributes:
        metric: Name of the headline metric on the validation split, else of the loss.
        value: Value of the metric.
        step: Optimiser step of the sealed weights.
        action: Id of the training's record.
    """

    metric: str
    value: float
    step: int
    action: str


class ReportedThroughput(Throughput, frozen=True, kw_only=True):
    """Speed of the steps, with its source.

    Attributes:
        action: Id of the training's record.
    """

    action: str


class ReportedGoodput(Goodput, frozen=True, kw_only=True):
    """Time of all attempts by part, with its source.

    Attributes:
        action: Id of the training's record.
    """

    action: str


class ReportedResources(Resources, frozen=True, kw_only=True):
    """CPU, memory and GPU use of the ranks, with its source.

    Attributes:
        action: Id of the training's record.
    """

    action: str


class ReportedPacks(PackedSamples, frozen=True, kw_only=True):
    """Samples that are blocks or packs, with their source.

    Attributes:
        action: Id of the training's record.
    """

    action: str


class ReportedEnvironment(Record, frozen=True, kw_only=True):
    """Environment of a training.

    Attributes:
        python: Version of Python.
        platform: Platform of the machine.
        num_packages: Number of installed packages.
        sha256: Digest of the installed packages.
        image: Digest of the container image.
        differences: Sentence for each difference from the lock; null if no packages were recorded.
    """

    python: str | None = None
    platform: str | None = None
    num_packages: int | None = None
    sha256: str | None = None
    image: str | None = None
    differences: list[str] | None = None


class Cell(Record, frozen=True, kw_only=True):
    """A cell of a confusion matrix.

    Attributes:
        count: Number of samples.
        shade: Share of the row, in eighths.
        right: Whether the cell counts correct predictions.
    """

    count: int
    shade: int
    right: bool


class ConfusionRow(Record, frozen=True, kw_only=True):
    """A row of a confusion matrix.

    Attributes:
        name: True class.
        cells: A cell for each predicted class.
    """

    name: str
    cells: list[Cell]


class ClassAccuracy(Record, frozen=True, kw_only=True):
    """Accuracy of one class.

    Attributes:
        name: Name of the class.
        samples: Number of samples of the class.
        right: Number of correctly predicted samples.
    """

    name: Any
    samples: int
    right: int


class ReportedConfusion(Record, frozen=True, kw_only=True):
    """Confusion of a classifier, as the page shows it.

    Attributes:
        num_classes: Number of classes.
        num_mistakes: Number of wrong predictions.
        max_undercount: Largest possible error of a count in `mistakes`; counts are never too high.
        classes: Names of the classes, if there are few.
        rows: Rows of the confusion matrix, if there are few classes.
        mistakes: Most frequent mistakes.
        hardest: Classes with the lowest accuracy.
    """

    num_classes: int
    num_mistakes: int
    max_undercount: int
    classes: list[str]
    rows: list[ConfusionRow]
    mistakes: list[Mistake]
    hardest: list[ClassAccuracy]


class ReportedImage(Record, frozen=True, kw_only=True):
    """An image that a model logged.

    Attributes:
        image: Key in `images` of the report; absent if the image is left out to keep the page small.
        width: Width of the logged image in pixels.
        height: Height of the logged image in pixels.
        caption: Caption.
    """

    image: str | UnsetType = UNSET
    width: int
    height: int
    caption: str | UnsetType = UNSET


class ReportedEntry(Record, frozen=True, kw_only=True):
    """What a model logged under one name at one step; long tables and texts are cut.

    Attributes:
        step: Optimiser steps done.
        images: Images.
        columns: Names of a table's columns.
        rows: Rows of a table.
        text: A text.
        num_more: Number of images, rows or characters that are left out here.
    """

    step: int
    images: list[ReportedImage] | UnsetType = UNSET
    columns: list[str] | UnsetType = UNSET
    rows: list[list[Any]] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    num_more: int = 0


class ReportedLog(Record, frozen=True, kw_only=True):
    """Entries that a model logged under one name.

    Attributes:
        name: Name that the model gave.
        num_entries: Number of entries in metrics.jsonl.
        entries: Entries of some steps, the first and the last among them.
        action: Id of the action.
    """

    name: str
    num_entries: int
    entries: list[ReportedEntry]
    action: str


class ReportedRun(Record, frozen=True, kw_only=True):
    """A run as the page shows it.

    Attributes:
        id: Unique id in the report: the id of the training, plus that of the evaluation if the report
            contains two evaluations of the training.
        training_id: Id of the training.
        name: Name of the run.
        names: All names of the run.
        notes: Text of `config/notes/{name}.md`, by name.
        tags: Tags in these files.
        identity: Digest of the identity document.
        dataset: Ids of the datasets, in one text.
        trained_on: Datasets of the training.
        dataset_names: Names of the datasets.
        bases: What the training began from.
        model: Model as written in the run table.
        accepted: Acceptance, if the result was accepted from an earlier one.
        settings: All settings, by dotted key.
        changed: Keys of the settings that differ from the defaults.
        varied: Keys of the settings that vary within a grid of the run table.
        in_table: Whether the run is in the leaderboard; the runs of a scaling study are not.
        varied_values: Settings that vary within a grid of the run table, by dotted key.
        all_but_seed: Digest of everything that the result depends on, except seed and fold; equal for
            repeats.
        num_folds: Number of folds of the dataset, if the run tests on a fold.
        versions: Result versions, from the identity document.
        definitions: Digests of the definitions in the user's code.
        warnings: Warnings on the sealed model.
        headline: Metric that the run is ranked by.
        metrics: Held-out metrics, by name.
        held_out_task: Task of the evaluation, such as `regression`.
        known_value: Published value to compare with: `metric`, `value` and `meaning`.
        calibration: Expected calibration error.
        reliability: Bins of the calibration.
        residuals: True and predicted values of a regression.
        confusion: Confusion of a classifier.
        samples: Single held-out samples; images are replaced by tokens of `images`.
        best_validation: Validation of the sealed weights.
        training: Training of the run.
        throughput: Speed of the steps.
        goodput: Time of all attempts, by part.
        resources: CPU, memory and GPU use of the ranks.
        packs: Blocks or packs, if samples are such.
        curves: Curves by metric. A long curve keeps the lowest and highest value of each range of steps.
        epoch_ends: Passes over the data, by step.
        logged: Images, tables and texts that the model logged, by name.
        logged_until: Step from which on they were left out, since a run keeps a bounded number.
        code: State of the project's checkout.
        environment: Environment of the training.
        software: Versions of the most important software.
        tracking: Links and ids of the run in each tracker.
        manifest_sha256: SHA-256 of the manifest that the training read.
        files: SHA-256 of the sealed files, by name.
        made: Records of the jobs behind the run, by rule.
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
    bases: list[ReportedBase] | UnsetType = UNSET
    model: str | None = None
    accepted: ReportedAcceptance | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    varied_values: dict[str, Any] = field(default_factory=dict)
    in_table: bool = True
    all_but_seed: str = ""
    num_folds: int | UnsetType = UNSET
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
    logged: list[ReportedLog] | UnsetType = UNSET
    logged_until: int | UnsetType = UNSET
    code: Commit | None = None
    environment: ReportedEnvironment = ReportedEnvironment()
    software: dict[str, str] = field(default_factory=dict)
    tracking: Places = field(default_factory=dict)
    manifest_sha256: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(name="actions", default_factory=dict)

    @property
    def actions(self) -> dict[str, str]:
        """Id of the job behind the run, by rule."""
        return {rule: action["id"] for rule, action in self.made.items()}

    @property
    def dataset_name(self) -> str:
        """Names of the datasets in the config, in one text."""
        return ", ".join(self.dataset_names)

    @property
    def group_key(self) -> GroupKey:
        """Dataset names, dataset ids, split, metric and mode; runs with equal keys are ranked together."""
        split = self.split if self.fold is None else f"{self.split} by fold"
        return self.dataset_name, self.dataset, split, self.metric, self.mode

    @property
    def fold(self) -> int | None:
        """Fold that the run tests on."""
        found = self.setting("fold")
        return found if isinstance(found, int) else None

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return self.headline.metric

    @property
    def mode(self) -> str:
        """`max` if higher values of the headline metric are better, else `min`."""
        return self.headline.mode

    @property
    def split(self) -> str:
        """The held-out split that the run was evaluated on."""
        return self.headline.split

    @property
    def num_samples(self) -> int | None:
        """Number of held-out samples behind the headline metric; None if unknown."""
        return self.headline.num_samples

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the headline metric by the choice of samples; None if unknown."""
        return self.headline.interval

    @property
    def value(self) -> float:
        """Value of the headline metric; NaN if none could be computed."""
        return math.nan if self.headline.value is None else self.headline.value

    @property
    def is_measured(self) -> bool:
        """Whether the run has a headline metric; a training script may report none."""
        return self.headline.value is not None or not self.is_measured_by_script

    @property
    def is_measured_by_script(self) -> bool:
        """Whether the training script computed the held-out metrics."""
        return self.headline.measured_by == "script"

    def interval_of(self, value: float) -> Interval | None:
        """Return the interval for another value of the headline metric, such as a mean over seeds."""
        if self.headline.interval_method not in (None, "wilson"):
            return self.interval if value == self.value else None
        return interval_of_accuracy(self.headline, value)

    @property
    def validation_metric(self) -> str:
        """Name of the headline metric on the validation split, as the curves have it."""
        measure = measure_of(self.metric)
        return find_metric(self.curves, measure, "val") or f"val_{measure}"

    def curve_of_loss(self, split: str) -> Curve | None:
        """Return the curve of the loss on a split, `train` or `val`; None if it was not recorded."""
        return self.curves.get(find_metric(self.curves, "loss", split) or "")

    @property
    def held_out(self) -> dict[str, float | None]:
        """All held-out metrics that are numbers."""
        return {k: v for k, v in self.metrics.items() if not isinstance(v, str)}

    def setting(self, key: str) -> Any:
        """Return a setting by its dotted key; None if the run does not have the setting."""
        return self.varied_values.get(key, self.settings.get(key))


def interval_of_accuracy(headline: ReportedHeadline, value: float) -> Interval | None:
    """Return the Wilson interval of an accuracy; None for other metrics."""
    # what a model logs as accuracy may count pixels or tokens, and not the samples
    if headline.metric != "accuracy" or headline.is_logged_by_model:
        return None
    if not (headline.num_samples and 0 <= value <= 1):
        return None
    return wilson_interval(value, headline.num_samples)


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
