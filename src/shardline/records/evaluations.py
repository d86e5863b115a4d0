"""What shows how a model errs, in an evaluation's file."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.datasets import Reference
from shardline.records.measured import Number

SampleView = dict[
    str, Any
]  # as `describe_sample` of the model has it, see docs/how-to/evaluate-a-model.md


class Mistake(Record, frozen=True, kw_only=True):
    """How often one class was taken for another."""

    truth: Any
    predicted: Any
    count: int


class HardClass(Record, frozen=True, kw_only=True):
    """A class with its samples, and those of them that were found."""

    class_: Any = field(name="class")
    samples: int
    right: int


class ConfusionResult(Record, frozen=True, kw_only=True):
    """Which classes a classifier takes for which: of up to 100 classes the table, of more what is mistaken most.

    Attributes:
        classes: names, which a class of the user's may give as numbers.
        counts: a row for each true class.
        max_undercount: by how much a count of `mistakes` may be too low.
        mistakes: the 100 most frequent ones.
        hardest: the 100 classes of the lowest accuracy.
    """

    classes: list[Any] | UnsetType = UNSET
    counts: list[list[int]] | UnsetType = UNSET
    num_classes: int | UnsetType = UNSET
    num_mistakes: int | UnsetType = UNSET
    max_undercount: int | UnsetType = UNSET
    mistakes: list[Mistake] | UnsetType = UNSET
    hardest: list[HardClass] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse what is neither a table nor a list."""
        table, listed = (self.classes, self.counts), (self.num_classes, self.mistakes, self.hardest)
        if UNSET in table and UNSET in listed:
            raise ValueError("neither classes and counts nor num_classes, mistakes and hardest")
        lengths = {len(self.counts), *map(len, self.counts)} if self.counts else {0}
        if lengths != {len(self.classes or ())}:
            raise ValueError("counts that are no square of the classes")


class ConfidenceBin(Record, frozen=True, kw_only=True):
    """Samples of like confidence; mean confidence and accuracy are None of none."""

    low: Number
    high: Number
    count: int
    confidence: Number | None
    accuracy: Number | None


class Calibration(Record, frozen=True, kw_only=True):
    """Confidence against accuracy, and the expected calibration error, 0 to 1."""

    bins: list[ConfidenceBin]
    ece: Number | None


class Residuals(Record, frozen=True, kw_only=True):
    """True and predicted values of samples that are spread evenly over the split."""

    truth: list[Number]
    predicted: list[Number]


class ShownSamples(Record, frozen=True, kw_only=True):
    """Single samples: typical ones, spread evenly over the split, and those of the largest loss."""

    typical: list[SampleView] | UnsetType = UNSET
    hardest: list[SampleView] | UnsetType = UNSET


class HeadlineValue(Record, frozen=True, kw_only=True):
    """The held-out metric that runs are ranked by.

    Attributes:
        value: None where none could be computed.
        mode: which end of it is better, `min` or `max`.
        interval: ends of its 95 % interval, where the evaluation has found one by `interval_method`.
    """

    metric: str
    value: float | None
    mode: str = "max"
    interval: list[float] | UnsetType = UNSET
    interval_method: str | UnsetType = UNSET


class Evaluated(Record, frozen=True, kw_only=True):
    """What was found of a model on a held-out split.

    Attributes:
        measured_by: `script` or `model`; absent where Shardline measured.
        reference: a value of others to compare with.
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
