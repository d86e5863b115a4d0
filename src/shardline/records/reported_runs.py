"""A run in `report.json`, as the page shows it."""

import math
from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.core.intervals import Interval, wilson_interval
from shardline.core.metric_names import find_metric, measure_of
from shardline.records.base import Record
from shardline.records.datasets import Reference
from shardline.records.evaluations import Calibration, Residuals, ShownSamples
from shardline.records.jobs import Commit
from shardline.records.measured import Goodput, Resources, Throughput
from shardline.records.reported_parts import (
    Curve,
    EpochEnds,
    ReportedAcceptance,
    ReportedBase,
    ReportedCalibration,
    ReportedDataset,
    ReportedEnvironment,
    ReportedHeadline,
    ReportedTraining,
    ReportedValidation,
    ReportedWarning,
)
from shardline.records.reported_tables import ReportedConfusion, ReportedLog
from shardline.records.trainings import PackedSamples, Places

GroupKey = tuple[str, str, str, str, str]


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
    throughput: Throughput | None = None
    goodput: Goodput | None = None
    resources: Resources | None = None
    packs: PackedSamples | UnsetType = UNSET
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
