"""Parts of a run in `report.json`, as the page shows them."""

from bisect import bisect_right

from msgspec import UNSET, UnsetType, field

from shardline.core.intervals import Interval
from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.measured import Intervention, Number
from shardline.records.origins import BaseRef, CombinedRuns, Continued, LoadedWeights
from shardline.records.trainings import Certificate


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
        combined: Runs whose weights or outputs are averaged, if nothing was trained.
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
