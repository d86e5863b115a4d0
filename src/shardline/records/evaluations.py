"""Evaluations and predictions of a sealed model: held-out metrics, and the details that show errors."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.datasets import Count, Id, Name, Reference, Skipped
from shardline.records.identities import IdentityDocument, check_identity
from shardline.records.jobs import JobRecord
from shardline.records.measured import Number

# a value of the model's `describe_sample`, see docs/how-to/evaluate-a-model.md
SampleView = dict[str, Any]


class Mistake(Record, frozen=True, kw_only=True):
    """Number of samples of one class that were predicted as another class.

    Attributes:
        truth: True class.
        predicted: Predicted class.
        count: Number of samples.
    """

    truth: Any
    predicted: Any
    count: int


class HardClass(Record, frozen=True, kw_only=True):
    """Accuracy of one class.

    Attributes:
        class_: Name of the class.
        samples: Number of samples of the class.
        right: Number of correctly predicted samples.
    """

    class_: Any = field(name="class")
    samples: int
    right: int


class ConfusionResult(Record, frozen=True, kw_only=True):
    """Confusion of a classifier: the whole table for up to 100 classes, else the most frequent mistakes.

    Attributes:
        classes: Names of the classes; a source of your own may give numbers.
        counts: Confusion matrix [classes, classes]: one row for each true class.
        num_classes: Number of classes.
        num_mistakes: Number of wrong predictions.
        max_undercount: Largest possible error of a count in `mistakes`; counts are never too high.
        mistakes: The 100 most frequent mistakes.
        hardest: The 100 classes with the lowest accuracy.
    """

    classes: list[Any] | UnsetType = UNSET
    counts: list[list[int]] | UnsetType = UNSET
    num_classes: int | UnsetType = UNSET
    num_mistakes: int | UnsetType = UNSET
    max_undercount: int | UnsetType = UNSET
    mistakes: list[Mistake] | UnsetType = UNSET
    hardest: list[HardClass] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject a record with neither a table nor a list."""
        table, listed = (self.classes, self.counts), (self.num_classes, self.mistakes, self.hardest)
        if UNSET in table and UNSET in listed:
            raise ValueError("neither classes and counts nor num_classes, mistakes and hardest")
        lengths = {len(self.counts), *map(len, self.counts)} if self.counts else {0}
        if lengths != {len(self.classes or ())}:
            raise ValueError("counts that are no square of the classes")


class ConfidenceBin(Record, frozen=True, kw_only=True):
    """Samples of similar confidence.

    Attributes:
        low: Lower end of the confidences.
        high: Upper end of the confidences.
        count: Number of samples.
        confidence: Mean confidence; null without samples.
        accuracy: Share of correct predictions; null without samples.
    """

    low: Number
    high: Number
    count: int
    confidence: Number | None
    accuracy: Number | None


class Calibration(Record, frozen=True, kw_only=True):
    """Calibration of a classifier.

    Attributes:
        bins: Samples by confidence.
        ece: Expected calibration error, 0 to 1.
    """

    bins: list[ConfidenceBin]
    ece: Number | None


class Residuals(Record, frozen=True, kw_only=True):
    """Values of samples spread evenly over the split.

    Attributes:
        truth: True values.
        predicted: Predicted values.
    """

    truth: list[Number]
    predicted: list[Number]


class ShownSamples(Record, frozen=True, kw_only=True):
    """Single held-out samples.

    Attributes:
        typical: Samples spread evenly over the split.
        hardest: Samples with the largest loss.
    """

    typical: list[SampleView] | UnsetType = UNSET
    hardest: list[SampleView] | UnsetType = UNSET


class HeadlineValue(Record, frozen=True, kw_only=True):
    """The held-out metric that runs are ranked by.

    Attributes:
        metric: Name of the metric.
        value: Value; null if none could be computed.
        mode: `max` if higher values are better, else `min`.
        interval: Ends of the 95 % interval.
        interval_method: Method of the interval, such as `wilson`.
    """

    metric: str
    value: float | None
    mode: str = "max"
    interval: list[float] | UnsetType = UNSET
    interval_method: str | UnsetType = UNSET


class Evaluated(Record, frozen=True, kw_only=True):
    """Evaluation of a model on a held-out split.

    Attributes:
        run: Id of the run.
        split: Name of the held-out split.
        task: Task of the dataset, such as `classification`.
        num_samples: Number of evaluated samples.
        metrics: Metrics by name; null for NaN and infinity.
        headline: Metric that runs are ranked by.
        confusion: Confusion of a classifier.
        calibration: Calibration of a classifier.
        residuals: True and predicted values of a regression.
        samples: Single samples that the report shows.
        measured_by: `script` or `model` if these computed the metrics; absent if Shardline did.
        reference: Published value to compare with.
    """

    run: str = ""
    split: str = "test"
    task: str = ""
    num_samples: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    headline: HeadlineValue
    confusion: ConfusionResult | UnsetType | None = UNSET
    calibration: Calibration | UnsetType | None = UNSET
    residuals: Residuals | UnsetType | None = UNSET
    samples: ShownSamples | UnsetType | None = UNSET
    measured_by: str | UnsetType = UNSET
    reference: Reference | UnsetType | None = UNSET


class EvaluationRef(Record, frozen=True, kw_only=True):
    """An evaluation of a run.

    Attributes:
        run: Id of the run.
        evaluation: Id of the evaluation.
    """

    run: Id
    evaluation: Name


class TakenOver(Record, frozen=True, kw_only=True):
    """Origin of an accepted evaluation.

    Attributes:
        from_: Earlier evaluation.
    """

    from_: EvaluationRef = field(name="from")


class EvaluationResult(Evaluated, frozen=True, kw_only=True):
    """evaluations/{id}.json: an evaluation of a sealed model.

    Attributes:
        files: SHA-256 of the evaluated files, by name.
        identity: Identity document of the evaluation.
        accepted: Earlier evaluation that was accepted.
        action: Record of the job.
    """

    files: dict[Name, str] | UnsetType = UNSET
    identity: IdentityDocument
    accepted: TakenOver | UnsetType = UNSET
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject an invalid identity document."""
        check_identity(self.identity)


class PredictionResult(Record, frozen=True, kw_only=True):
    """predictions/{id}.json. Until the parts are joined, the file is {id}.parts.json.

    Attributes:
        run: Id of the run.
        rows: Number of predicted rows.
        parts: Number of files that the ranks wrote.
        classes: Names of the classes.
        skipped: Skipped rows.
        manifest_sha256: SHA-256 of the predicted dataset's manifest.
        files: SHA-256 of the model and of the Parquet file, by name.
        identity: Identity document of the prediction.
        action: Record of the job.
    """

    run: str = ""
    rows: Count
    parts: Count = 0
    classes: list[Any] | None = None
    skipped: Skipped = Skipped()
    manifest_sha256: str = ""
    files: dict[Name, str]
    identity: IdentityDocument
    action: JobRecord | UnsetType = UNSET
